"""Gives values in texts the form of JSON: true, null, [1, "a"].

The engine itself writes True, None and [1, 'a'], and most of its filters for text take other values in this form. What
a template puts out passes through `_put_out`. Inside an expression, the operator `~` and a few filters make texts.
`insertions` passes each operand of `~` through a filter: `(a)|default(_absent)|_text ~ (b)|default(_absent)|_text`. A
filter of ours cannot tell an undefined value from none; `_absent` tells them apart, so that a missing path stays an
error. An `if` without `else` can be undefined, and shows nothing: it gets `else ''`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import minijinja

from services.rendering.guarded import unguarded
from windlass.definition.words import Word, WordRole, is_not
from windlass.sdk import PermanentError

_ABSENT: Final = "_absent"
_OR_ABSENT: Final = f"|default({_ABSENT})"
_AS_TEXT: Final = f"){_OR_ABSENT}|_text"
# These filters of ours replace those of the engine.
_OURS: Final = frozenset({"join", "pprint", "string"})
_OPENING: Final = frozenset({WordRole.GROUP, WordRole.ARGUMENTS, WordRole.SUBSCRIPT})
# These bind tighter than `~`, so they are inside of an operand.
_TIGHT: Final = frozenset({"*", "/", "//", "%", "**", "|", ".", "is"})
# An `if` without `else` ends here, at the latest.
_ENDS: Final = frozenset({",", ":", "="})


class _Absent:
    """Stands for a path that does not exist."""


def add_to(environment: minijinja.Environment) -> None:
    environment.finalizer = _put_out
    environment.add_global(_ABSENT, _Absent())
    for name in ("_text", "pprint", "string"):
        environment.add_filter(name, text_of)
    environment.add_filter("_value", _value)
    environment.add_filter("join", _joined)


def text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    if type(value) is int:
        return str(value)
    if isinstance(value, _Absent):
        raise _fault("a value for the text is not there")
    try:
        try:
            return _json(value)
        except TypeError:
            # The encoder cannot read guarded objects.
            return _json(unguarded(value))
    except (TypeError, ValueError) as error:
        raise _fault(f"a value in the text is not JSON: {error}") from None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _value(value: Any) -> Any:
    """Numbers stay numbers, so that `format` can format them."""
    return value if type(value) in {int, float} else text_of(value)


def _put_out(value: Any) -> Any:
    return NotImplemented if isinstance(value, str) else text_of(value)


def _joined(values: Any, between: Any = "", attribute: str = "") -> str:
    if isinstance(values, _Absent):
        raise _fault("what the filter `join` joins is not there")
    try:
        items = [each[attribute] for each in values] if attribute else [*values]
        return text_of(between or "").join([each if type(each) is str else text_of(each) for each in items])
    except (TypeError, LookupError):
        raise _fault("the filter `join` joins the items of a list") from None


def _fault(message: str) -> PermanentError:
    return PermanentError(message, type="TEMPLATE_ERROR")


class _Level:
    """The part of an expression between two brackets, or the whole expression."""

    def __init__(self) -> None:
        # The words of each operand of the present chain of `~`.
        self.operands: list[list[Word]] = [[]]
        # The number of `if`s that wait for their `else`.
        self.ifs = 0


def insertions(words: Sequence[Word], *, is_output: bool) -> list[tuple[int, str]]:
    """The texts to insert into an expression, each with its place. `is_output`: its value goes into a text."""
    found: list[tuple[int, str]] = []
    levels = [_Level()]
    is_loop = bool(words) and words[0].role is WordRole.STATEMENT and words[0].text == "for"
    formatted: list[tuple[int, str]] = []
    for number, (before, word) in enumerate(pairwise([*words[:1], *words])):
        if word.role is WordRole.ARGUMENTS and before.text == "format":
            for first, last in _arguments(words[number + 1 :]):
                formatted += [(first.start, "("), (last.stop, f"){_OR_ABSENT}|_value")]
        if word.role is WordRole.FILTER and word.text in _OURS and before.text == "|":
            found.append((before.start, _OR_ABSENT))
        if word.role in _OPENING:
            levels[-1].operands[-1].append(word)
            levels.append(_Level())
        elif word.text in {")", "]", "}"}:
            _end(levels.pop(), found)
            if not levels:
                return []  # the engine refuses it
            levels[-1].operands[-1].append(word)
        elif word.role is WordRole.OPERATOR:
            _pass(word, before, levels[-1], found)
        elif word.role is not WordRole.STATEMENT:
            levels[-1].operands[-1].append(word)
    if len(levels) > 1:
        return []
    if is_loop or not is_output:
        levels[0].ifs = 0
    _end(levels[0], found)
    # An argument ends behind everything that ends in it.
    return sorted([*found, *formatted], key=lambda each: each[0])


def _arguments(words: Sequence[Word]) -> Iterator[tuple[Word, Word]]:
    """The first and the last word of each argument up to the bracket that closes."""
    inside: list[Word] = []
    depth = 0
    for word in words:
        if depth == 0 and word.text in {")", ",", "="}:
            # Before `=` is only the name of an argument.
            if inside and word.text != "=":
                yield inside[0], inside[-1]
            if word.text == ")":
                return
            inside = []
            continue
        depth += (word.role in _OPENING) - (word.text in {")", "]", "}"})
        inside.append(word)


def _pass(word: Word, before: Word, level: _Level, found: list[tuple[int, str]]) -> None:
    operand = level.operands[-1]
    is_sign = word.text in {"+", "-"} and not operand
    if word.text in _TIGHT or is_sign or is_not(before, word):
        operand.append(word)
    elif word.text == "~":
        level.operands.append([])
    elif word.text in _ENDS:
        _end(level, found)
    else:
        _end_chain(level, found)
        level.ifs += (word.text == "if") - (word.text == "else")


def _end_chain(level: _Level, found: list[tuple[int, str]]) -> None:
    if len(level.operands) > 1:
        for operand in level.operands:
            if operand and not (len(operand) == 1 and operand[0].role is WordRole.LITERAL):
                found += [(operand[0].start, "("), (operand[-1].stop, _AS_TEXT)]
    level.operands = [[]]


def _end(level: _Level, found: list[tuple[int, str]]) -> None:
    stop = level.operands[-1][-1].stop if level.operands[-1] else 0
    _end_chain(level, found)
    if level.ifs > 0 and stop:
        found.append((stop, " else ''"))
    level.ifs = 0
