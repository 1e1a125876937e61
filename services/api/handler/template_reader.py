"""Templates as minijinja reads them: the same engine that renders them in the runner, so both agree on syntax.

Only parsed here, never rendered: nothing of a user's template runs in api.
"""

from __future__ import annotations

import re
import threading
from typing import Final

from minijinja import Environment, TemplateError

from services.api.core.templates import TemplateSyntax

TEMPLATE_CHARACTERS_MAX: Final = 65_536
# Finding the names takes the square of an expression's length: at this one some thousandths of a second.
EXPRESSION_CHARACTERS_MAX: Final = 4_096
_OPENING: Final = re.compile(r"\{\{|\{%")


class MinijinjaReader(threading.local):
    """Large definitions are examined in a thread of their own: each thread has its own engine."""

    def __init__(self) -> None:
        self._environment = Environment()

    def names(self, template: str) -> frozenset[str] | TemplateSyntax:
        if len(template) > TEMPLATE_CHARACTERS_MAX:
            return TemplateSyntax(f"at most {TEMPLATE_CHARACTERS_MAX} characters")
        if (
            len(template) > EXPRESSION_CHARACTERS_MAX
            and _longest_expression(template) > EXPRESSION_CHARACTERS_MAX
        ):
            return TemplateSyntax(f"at most {EXPRESSION_CHARACTERS_MAX} characters between two braces")
        try:
            return frozenset(self._environment.undeclared_variables_in_str(template, nested=True))
        except TemplateError as failure:
            return TemplateSyntax(str(failure).splitlines()[0][:300])


def _longest_expression(template: str) -> int:
    longest, place = 0, 0
    while (opening := _OPENING.search(template, place)) is not None:
        place = template.find("}}" if opening[0] == "{{" else "%}", opening.end())
        if place < 0:  # the engine has words for that
            break
        longest = max(longest, place - opening.end())
    return longest
