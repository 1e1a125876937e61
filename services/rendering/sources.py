"""Prepares a template for the engine: refuses calls, makes texts those of JSON, and tells whether it needs guarded
data (guarded.py).

A template needs guarded data if it may ask an object or a list for a name that is that of a method, and the object or
the list lacks the name. The name stands in the template (`input.items`), or is computed (`input[state.key]`). An
expression of known paths alone needs none if these exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import takewhile, zip_longest
from typing import Any, Final, NamedTuple

from services.rendering.guarded import METHODS
from services.rendering.texts import insertions
from windlass.definition.words import Word, WordRole, call_in, words, words_of
from windlass.sdk import PermanentError

# These filters look for an attribute that an argument names.
_BY_NAME: Final = frozenset(
    {"attr", "groupby", "join", "map", "max", "min", "rejectattr", "selectattr", "sort", "sum", "unique"}
)
_FIXED: Final = frozenset({":", "-", ",", "=", "true", "false", "none"})
# Longer templates are prepared each time, so that those that are kept take little memory.
_KEPT_CHARACTERS_MAX: Final = 1_024

Path = tuple[str, ...]


class TemplateSource(NamedTuple):
    text: str
    # Data needs no guard if these paths exist. None: it needs the guard anyway.
    paths: tuple[Path, ...] | None

    def needs_guard(self, scope: Mapping[str, Any]) -> bool:
        return self.paths is None or not all(_exists(path, scope) for path in self.paths)


def _exists(path: Path, scope: Mapping[str, Any]) -> bool:
    here: Any = scope
    for name in path:
        if not isinstance(here, dict) or name not in here:
            return False
        here = here[name]
    return True


def expression_source(expression: str) -> TemplateSource:
    """A bare expression. Raises PermanentError when something is called."""
    return (_of_expression if len(expression) <= _KEPT_CHARACTERS_MAX else _of_expression.__wrapped__)(expression)


def template_source(template: str) -> TemplateSource:
    """A text with templates. Raises PermanentError when something is called."""
    return (_of_template if len(template) <= _KEPT_CHARACTERS_MAX else _of_template.__wrapped__)(template)


@lru_cache(maxsize=1024)
def _of_expression(expression: str) -> TemplateSource:
    _refuse_call("{{" + expression + "}}")
    found = words(expression)
    return TemplateSource(_inserted(expression, insertions(found, is_output=False)), _paths(found))


@lru_cache(maxsize=1024)
def _of_template(template: str) -> TemplateSource:
    _refuse_call(template)
    inserted: list[tuple[int, str]] = []
    paths: list[Path] | None = []
    for found in words_of(template):
        inserted += insertions(found, is_output=True)
        more = _paths(found)
        paths = None if paths is None or more is None else [*paths, *more]
    return TemplateSource(_inserted(template, inserted), None if paths is None else tuple(paths))


def _refuse_call(template: str) -> None:
    if call := call_in(template):
        raise PermanentError(f"`{call}` is a call; templates call nothing", type="TEMPLATE_ERROR")


def _inserted(text: str, inserted: Sequence[tuple[int, str]]) -> str:
    parts, place = [], 0
    for at, what in inserted:
        parts += [text[place:at], what]
        place = at
    return "".join([*parts, text[place:]])


def _paths(found: Sequence[Word]) -> tuple[Path, ...] | None:
    """The paths that lead to the name of a method; None when others may."""
    paths: list[Path] = []
    path: list[str] = []
    is_statement = bool(found) and found[0].role is WordRole.STATEMENT
    for number, word in enumerate(found):
        follows = found[number + 1 :]
        if word.role is WordRole.ATTRIBUTE:
            if path:
                path.append(word.text)
            if word.text in METHODS:
                if is_statement or not path:
                    return None
                paths.append(tuple(path))
        elif word.role is WordRole.VALUE and word.text.isidentifier():
            path = [word.text]
        elif word.text != ".":
            path = []
        if _may_name(word, follows, found[number - 1] if number else None):
            return None
    return tuple(paths)


def _may_name(word: Word, follows: Sequence[Word], before: Word | None) -> bool:
    """True when the word, or what stands in its brackets, may name a method without being an attribute."""
    if word.role is WordRole.LITERAL:
        return "\\" in word.text or not METHODS.isdisjoint(word.text[1:-1].split("."))
    if word.role is WordRole.SUBSCRIPT:
        return not _is_fixed(_inside(follows))
    if word.role is WordRole.ARGUMENTS and before is not None and before.text in _BY_NAME:
        # The further arguments of these two are for a test.
        return not _is_fixed(_inside(follows)[: 2 if before.text in {"rejectattr", "selectattr"} else None])
    return False


def _inside(follows: Sequence[Word]) -> Sequence[Word]:
    """The words up to the bracket that closes."""
    return list(takewhile(lambda word: word.text not in {")", "]"}, follows))


def _is_fixed(inside: Sequence[Word]) -> bool:
    """True when nothing between two brackets is computed: there are literals, and names of arguments before `=`."""
    return all(
        word.role is WordRole.LITERAL
        or word.text.isdigit()
        or word.text in _FIXED
        or (following is not None and following.text == "=")
        for word, following in zip_longest(inside, inside[1:])
    )
