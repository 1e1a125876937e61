"""Limits the length of the expressions in templates: of each one, and of all long ones in a definition together.

The template engine reads a chain of operators (`1+1+1+…`) in time that grows with the square of its length, and some
ten thousand operators overflow the stack and end the process. So lengths are checked before the engine reads anything.
The ends of expressions are found by the engine's own rules (strings, brackets, comments, raw blocks): by any other
rules, a long expression could look short.
"""

import re
from collections.abc import Iterator
from typing import Final

TEMPLATE_CHARACTERS_MAX: Final = 65_536
# The engine reads this in a hundredth of a second.
EXPRESSION_CHARACTERS_MAX: Final = 4_096
# Expressions over the first limit may have the second number of characters together in one definition. These take a
# tenth of a second at most; a mebibyte of expressions just below the first limit takes a fifth.
LONG_CHARACTERS_MIN: Final = 256
LONG_CHARACTERS_MAX: Final = 32_768

_OPENING: Final = re.compile(r"\{[{%#]")
_RAW: Final = re.compile(r"\{%[-+]?\s*raw\s*[-+]?%\}", re.ASCII)
_RAW_END: Final = re.compile(r"\{%[-+]?\s*endraw\s*[-+]?%\}", re.ASCII)
# A single quote character matches only when its string has no end.
_INSIDE: Final = re.compile(r""" "(?:[^"\\]|\\.)*+" | '(?:[^'\\]|\\.)*+' | ["'()\[\]{}%] """, re.VERBOSE | re.DOTALL)

_SIGNS: Final = re.compile(r"\A[-+]|[-+]\Z")


def spans(template: str) -> Iterator[tuple[int, int]]:
    """The start and end of each expression or statement, without its braces."""
    place = 0
    while (opening := _OPENING.search(template, place)) is not None:
        start = opening.end()
        if opening[0] == "{#":
            place = template.find("#}", start) + 2
            if place < 2:
                return
        elif (raw := _RAW.match(template, opening.start())) is not None:
            end = _RAW_END.search(template, raw.end())
            if end is None:
                return
            place = end.end()
        else:
            stop = _end(template, start, "}}" if opening[0] == "{{" else "%}")
            yield start, stop
            place = stop + 2


def whole_expression(template: str) -> str | None:
    """What stands between the braces, if the text is one expression in braces and nothing else but space."""
    text = template.strip()
    if not text.startswith("{{") or next(spans(text)) != (2, len(text) - 2):
        return None
    # A sign beside the braces is no operator: it says what becomes of the space around them.
    return _SIGNS.sub("", text[2:-2])


def _end(template: str, start: int, closing: str) -> int:
    """The end of the expression that begins at `start`: the end of the template when nothing closes it."""
    depth = 0
    for found in _INSIDE.finditer(template, start):
        if depth == 0 and template.startswith(closing, found.start()):
            return found.start()
        if found[0] in "\"'":
            break
        if found[0] in "([{":
            depth += 1
        elif found[0] in ")]}":
            depth -= 1
    return len(template)


class Allowance:
    """The number of characters that the long expressions of one definition may still have."""

    def __init__(self) -> None:
        self._characters = LONG_CHARACTERS_MAX

    def excess_of(self, template: str) -> str:
        """Why this template is too long to be read; "" when it is not."""
        if len(template) > TEMPLATE_CHARACTERS_MAX:
            return f"at most {TEMPLATE_CHARACTERS_MAX} characters"
        if len(template) <= LONG_CHARACTERS_MIN:
            return ""
        lengths = [stop - start for start, stop in spans(template)]
        if max(lengths, default=0) > EXPRESSION_CHARACTERS_MAX:
            return f"at most {EXPRESSION_CHARACTERS_MAX} characters between two braces"
        long = sum(length for length in lengths if length > LONG_CHARACTERS_MIN)
        if long > self._characters:
            return (
                f"at most {LONG_CHARACTERS_MAX} characters in a definition"
                f" between all braces that hold more than {LONG_CHARACTERS_MIN}"
            )
        self._characters -= long
        return ""
