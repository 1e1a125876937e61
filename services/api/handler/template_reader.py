"""Templates as minijinja reads them: the same engine that renders them in the runner, so both agree on syntax.

Only parsed here, never rendered: nothing of a user's template runs in api.
"""

from __future__ import annotations

from typing import Final

from minijinja import Environment, TemplateError

from services.api.core.templates import TemplateSyntax

# Parsing is linear, yet nobody needs a template of a megabyte.
TEMPLATE_CHARACTERS_MAX: Final = 65_536


class MinijinjaReader:
    def __init__(self) -> None:
        self._environment = Environment()

    def names(self, template: str) -> frozenset[str] | TemplateSyntax:
        if len(template) > TEMPLATE_CHARACTERS_MAX:
            return TemplateSyntax(f"at most {TEMPLATE_CHARACTERS_MAX} characters")
        try:
            return frozenset(self._environment.undeclared_variables_in_str(template, nested=True))
        except TemplateError as failure:
            return TemplateSyntax(str(failure).splitlines()[0][:300])
