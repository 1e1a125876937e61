"""Parses the text of a filter: the grammar of AIP-160 (https://google.aip.dev/160) for the fields of a list.

    expression  factor { [AND] factor }          factors without a word between them are joined by AND
    factor      term { OR term }                 OR binds tighter than AND
    term        [NOT | -] (comparison | "(" expression ")")
    comparison  field (= | != | < | <= | > | >= | :) value

`filter_values.py` checks each comparison. Functions, words without a field and lists of values are refused.

Hazard: the depth is bounded, because it becomes the depth of our stack, of the messages and of the SQL statement.
"""

import re
from collections.abc import Sequence
from typing import Final, NoReturn

from services.api.app.refusals import invalid_field
from services.api.rpc.filter_values import Text, bad_filter, restriction, shown, value_of
from services.api.rpc.filters import OF_EXECUTIONS, ExecutionFilter, FilterFields
from windlass.coordinator.v1 import reads_pb2 as pb

CHARACTERS_MAX: Final = 4_096
CONDITIONS_MAX: Final = 64
# The depth of parentheses. NOT adds none, because it stands only before a comparison or a parenthesis.
DEPTH_MAX: Final = 10

_KEYWORDS: Final = frozenset({"AND", "OR", "NOT"})
_WORD: Final = re.compile(r"""[^\s"'()=<>!:]+""")
# After a comparator a colon is text: part of a time, or of a label's value.
_VALUE: Final = re.compile(r"""[^\s"'()=<>!]+""")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*+)"' + r"|'((?:[^'\\]|\\.)*+)'", re.DOTALL)
_COMPARATOR: Final = re.compile(r"<=|>=|!=|[=<>:]")


def parse(text: str) -> ExecutionFilter:
    """A filter of executions."""
    return ExecutionFilter(conditions_of(text, OF_EXECUTIONS))


def conditions_of(text: str, fields: FilterFields) -> Sequence[pb.Condition]:
    """The conditions of a filter over these fields. All must hold; everything matches an empty text. Raises a refusal
    that names the place of the fault."""
    if len(text) > CHARACTERS_MAX:
        raise invalid_field("filter", "BAD_FILTER", f"{len(text)} characters; at most {CHARACTERS_MAX}")
    return _Reader(text, fields).whole()


class _Reader:
    """Reads the text once. `_place` is after the last word that was read and the blanks that follow it."""

    def __init__(self, text: str, fields: FilterFields) -> None:
        self._text = text
        self._fields = fields
        self._conditions = 0
        self._place = 0
        self._go_to(0)

    def whole(self) -> Sequence[pb.Condition]:
        if self._is_at_end():
            return ()
        found = self._expression(0)
        if not self._is_at_end():
            self._refuse("this ')' has no '('")
        return found

    def _expression(self, depth: int) -> list[pb.Condition]:
        found: list[pb.Condition] = []
        while True:
            factor = self._factor(depth)
            found += factor.all_of.conditions if factor.HasField("all_of") else (factor,)
            if not self._takes("AND") and (self._is_at_end() or self._is_before(")")):
                return found

    def _factor(self, depth: int) -> pb.Condition:
        terms = [self._term(depth)]
        while self._takes("OR"):
            terms.append(self._term(depth))
        return terms[0] if len(terms) == 1 else pb.Condition(any_of=pb.Conditions(conditions=terms))

    def _term(self, depth: int) -> pb.Condition:
        if not self._takes("NOT"):
            if not self._is_before("-"):
                return self._simple(depth)
            self._go_to(self._place + 1)
        return pb.Condition(negated=self._simple(depth))

    def _simple(self, depth: int) -> pb.Condition:
        opened = self._place
        if not self._is_before("("):
            return self._comparison()
        if depth == DEPTH_MAX:
            self._refuse(f"there are more than {DEPTH_MAX} parentheses inside each other")
        self._go_to(opened + 1)
        found = self._expression(depth + 1)
        if not self._is_before(")"):
            self._refuse("this '(' has no ')'", opened)
        self._go_to(self._place + 1)
        return found[0] if len(found) == 1 else pb.Condition(all_of=pb.Conditions(conditions=found))

    def _comparison(self) -> pb.Condition:
        place, field = self._place, self._field()
        comparator = _COMPARATOR.match(self._text, self._place)
        if comparator is None:
            self._refuse_bare(place, field)
        self._go_to(comparator.end())
        value = self._value(comparator[0])
        self._conditions += 1
        if self._conditions > CONDITIONS_MAX:
            self._refuse(f"there are more than {CONDITIONS_MAX} comparisons", place)
        return restriction(place, field, comparator[0], value, self._fields)

    def _field(self) -> str:
        """A field name, also in the form `labels."any key"`."""
        word = _WORD.match(self._text, self._place)
        if word is None or word[0] in _KEYWORDS or word[0].startswith("-"):
            self._refuse_missing()
        field, end = word[0], word.end()
        if field.endswith(".") and (quoted := _QUOTED.match(self._text, end)) is not None:
            field, end = field + _unescaped(quoted), quoted.end()
        if self._text.startswith("(", end):
            self._refuse(f"{shown(field)} is followed by '(', but filters have no functions")
        self._go_to(end)
        return field

    def _value(self, comparator: str) -> Text:
        place = self._place
        if (quoted := _QUOTED.match(self._text, place)) is not None:
            self._go_to(quoted.end())
            return value_of(place, quoted[0][1:-1])
        word = _VALUE.match(self._text, place)
        if word is None or word[0] in _KEYWORDS:
            if self._is_before('"') or self._is_before("'"):
                self._refuse("this quote has no end")
            if self._is_before("("):
                self._refuse(f"{comparator!r} takes one value: repeat the field, as in (a = 1 OR a = 2)")
            self._refuse(f"a value is missing after {comparator!r}")
        if self._text.startswith("(", word.end()):
            self._refuse(f"{shown(word[0])} is followed by '(', but filters have no functions")
        self._go_to(word.end())
        # A backslash outside quotes is text.
        return value_of(place, word[0].replace("\\", "\\\\"))

    def _go_to(self, place: int) -> None:
        self._place = len(self._text) - len(self._text[place:].lstrip())

    def _takes(self, keyword: str) -> bool:
        word = _WORD.match(self._text, self._place)
        if word is None or word[0] != keyword:
            return False
        self._go_to(word.end())
        return True

    def _is_at_end(self) -> bool:
        return self._place == len(self._text)

    def _is_before(self, character: str) -> bool:
        return self._text.startswith(character, self._place)

    def _refuse(self, message: str, place: int | None = None) -> NoReturn:
        raise bad_filter(self._place if place is None else place, message)

    def _refuse_missing(self) -> NoReturn:
        if self._is_at_end():
            self._refuse("a comparison is missing at the end")
        rest = self._text[self._place :].split(maxsplit=1)[0]
        self._refuse(f"a comparison like state = FAILED is missing before {shown(rest)}")

    def _refuse_bare(self, place: int, field: str) -> NoReturn:
        if field.upper() in _KEYWORDS:
            self._refuse(f"{shown(field)} must be written in capitals, like AND, OR, NOT", place)
        self._refuse(f"{shown(field)} must be followed by a comparison and a value, like {field[:40]} = x", place)


def _unescaped(quoted: re.Match[str]) -> str:
    return re.sub(r"\\(.)", r"\1", quoted[0][1:-1], flags=re.DOTALL)
