"""Reads the expressions of a template as words, each with its role, and finds the calls among them.

Templates call nothing: no method of a value, no function, no macro. A bracket that opens directly behind a value is a
call. Behind the name of a filter or a test it holds the arguments of the filter or the test.
"""

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

from windlass.definition.expressions import spans

_WORD: Final = re.compile(
    r""" (?P<name>[^\W\d]\w*) | (?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?\w*)
    | (?P<text>"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+') | (?P<sign>[=!<>]=|//|\*\*|\S) """,
    re.VERBOSE | re.DOTALL,
)
# A value begins behind one of these names.
_OPERATORS: Final = frozenset({"and", "else", "if", "in", "is", "not", "or"})
# These statements define or make calls.
_CALLING: Final = frozenset({"call", "macro"})


class WordRole(Enum):
    VALUE = auto()  # a name, a literal, or a bracket that closes
    LITERAL = auto()  # a text in quotes
    ATTRIBUTE = auto()  # the name behind a dot
    FILTER = auto()  # the name of a filter or a test
    GROUP = auto()  # a bracket that opens and belongs to no value
    ARGUMENTS = auto()  # a bracket that opens behind a filter or a test
    SUBSCRIPT = auto()  # a square bracket that opens behind a value
    CALL = auto()  # a round bracket that opens behind a value; the name of a statement that calls
    STATEMENT = auto()  # the name of any other statement
    OPERATOR = auto()  # everything else


_ENDS_VALUE: Final = frozenset({WordRole.VALUE, WordRole.LITERAL, WordRole.ATTRIBUTE, WordRole.FILTER})


class Word(NamedTuple):
    text: str
    role: WordRole
    start: int
    stop: int

    def is_operator(self, text: str) -> bool:
        return self.text == text and self.role is WordRole.OPERATOR

    @property
    def ends_value(self) -> bool:
        """True when an operator behind this word has two operands."""
        return self.role in _ENDS_VALUE


def words_of(template: str) -> Iterator[list[Word]]:
    """The words of each expression and each statement of a template, with their places."""
    for start, stop in spans(template):
        # A sign beside the braces only says that there is no white space around them.
        first = start + template.startswith(("-", "+"), start, stop)
        last = stop - template.endswith(("-", "+"), first, stop)
        yield words(template, first, last, is_statement=template[start - 1] == "%")


def words(text: str, start: int = 0, stop: int | None = None, *, is_statement: bool = False) -> list[Word]:
    """The words of one expression or statement, which stands between these places."""
    found: list[Word] = []
    for match in _WORD.finditer(text, start, len(text) if stop is None else stop):
        if match.lastgroup == "name":
            role = _role_of_name(match[0], found, is_statement=is_statement)
        elif match.lastgroup == "sign":
            role = _role_of_sign(match[0], found)
        else:
            role = WordRole.LITERAL if match.lastgroup == "text" else WordRole.VALUE
        found.append(Word(match[0], role, match.start(), match.end()))
    return found


def _role_of_name(name: str, before: list[Word], *, is_statement: bool) -> WordRole:
    if not before:
        return (WordRole.CALL if name in _CALLING else WordRole.STATEMENT) if is_statement else _plain_role(name)
    last, one_before = before[-1], before[-2] if len(before) > 1 else before[-1]
    if last.role is WordRole.STATEMENT:
        return WordRole.FILTER if last.text == "filter" else _plain_role(name)
    if last.role is not WordRole.OPERATOR:
        return _plain_role(name)
    if last.text == ".":
        # The name of a filter may have dots.
        return WordRole.FILTER if one_before.role is WordRole.FILTER else WordRole.ATTRIBUTE
    if last.text == "|" or (name != "not" and (last.is_operator("is") or is_not(one_before, last))):
        return WordRole.FILTER
    return _plain_role(name)


def is_not(first: Word, second: Word) -> bool:
    """True for the two words of the operator `is not`."""
    return first.is_operator("is") and second.is_operator("not")


def _plain_role(name: str) -> WordRole:
    return WordRole.OPERATOR if name in _OPERATORS else WordRole.VALUE


def _role_of_sign(sign: str, before: list[Word]) -> WordRole:
    if sign in {")", "]", "}"}:
        return WordRole.VALUE
    if sign not in {"(", "[", "{"}:
        return WordRole.OPERATOR
    if not before or not before[-1].ends_value or sign == "{":
        return WordRole.GROUP
    if sign == "[":
        return WordRole.SUBSCRIPT
    return WordRole.ARGUMENTS if before[-1].role is WordRole.FILTER else WordRole.CALL


def call_in(template: str) -> str:
    """The end of the words up to the first call; "" when nothing is called."""
    for found in words_of(template):
        for word in found:
            if word.role is WordRole.CALL:
                return template[found[0].start : word.stop][-60:]
    return ""
