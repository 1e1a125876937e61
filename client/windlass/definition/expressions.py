"""How long the expressions of a template are, and how much of them one definition may hold.

The engine of templates takes the square of an expression's length to read a chain of operators (`1+1+1+…`), and from
some ten thousands of them on the stack, and the process with it. So what is long is counted before it is read: one
expression has an end, and all the long ones of a definition have one together.
What is inside braces is told by the engine's own rules (strings, brackets, comments, raw blocks): by any others, an
expression could look short that is not.
"""

import re
from collections.abc import Iterator
from typing import Final

TEMPLATE_CHARACTERS_MAX: Final = 65_536
# A hundredth of a second to read.
EXPRESSION_CHARACTERS_MAX: Final = 4_096
# Of expressions that are longer than the first, the second in a definition. A mebibyte of such as are just not long
# takes a fifth of a second, the long ones a tenth at most.
LONG_CHARACTERS_MIN: Final = 256
LONG_CHARACTERS_MAX: Final = 32_768

_OPENING: Final = re.compile(r"\{[{%#]")
_RAW: Final = re.compile(r"\{%[-+]?\s*raw\s*[-+]?%\}", re.ASCII)
_RAW_END: Final = re.compile(r"\{%[-+]?\s*endraw\s*[-+]?%\}", re.ASCII)
# A quote that matches alone has no second one: what follows it is all inside.
_INSIDE: Final = re.compile(
    r""" "(?:[^"\\]|\\.)*+" | '(?:[^'\\]|\\.)*+' | ["'()\[\]{}%] """, re.VERBOSE | re.DOTALL
)


def spans(template: str) -> Iterator[tuple[int, int]]:
    """Where each expression or statement begins and ends, without its braces."""
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


def _end(template: str, start: int, closing: str) -> int:
    """That of the template, when what began at `start` has none: the engine may read as far."""
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
    """What is left of the long expressions of one definition."""

    def __init__(self) -> None:
        self._characters = LONG_CHARACTERS_MAX

    def excess_of(self, template: str) -> str:
        """Why this template is not to be read; "" when it is."""
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
                f"what has more than {LONG_CHARACTERS_MIN} characters between two braces"
                f" has at most {LONG_CHARACTERS_MAX} in a definition"
            )
        self._characters -= long
        return ""
