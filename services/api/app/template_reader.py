"""Templates as minijinja reads them: the same engine that renders them in the runner, so both agree on syntax.

Only parsed here, never rendered: nothing of a user's template runs in api.
"""

from __future__ import annotations

import threading

from minijinja import Environment, TemplateError

from services.api.core.templates import TemplateSyntax


class MinijinjaReader(threading.local):
    """Large definitions are examined in a thread of their own: each thread has its own engine."""

    def __init__(self) -> None:
        self._environment = Environment()

    def names(self, template: str) -> frozenset[str] | TemplateSyntax:
        try:
            return frozenset(self._environment.undeclared_variables_in_str(template, nested=True))
        except TemplateError as failure:
            return TemplateSyntax(str(failure).splitlines()[0][:300])
