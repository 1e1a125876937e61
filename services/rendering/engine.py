"""Resolves the templates in a node's config and inputs with minijinja.

A string that is one template keeps the type of its value; with text around the template the result is text, and other
values are in it as JSON. A missing path is an error of the node (PERMANENT), never an empty string. Templates come from
users: they see data only and call nothing (sources.py), burn bounded fuel and yield bounded text. Only a runner and its
child render.

Hazard: fuel counts steps, not the memory and time of one step. Templates that are not plain
(`services/runner/core/plain.py`) must be rendered in the child.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import minijinja

from services.rendering import texts
from services.rendering.guarded import guarded, unguarded
from services.rendering.sources import TemplateSource, expression_source, template_source
from windlass.definition.expressions import whole_expression
from windlass.sdk import PermanentError

# Steps of the template machine for one string: far above any real template, far below a second of CPU.
FUEL = 100_000
RENDERED_CHARACTERS_MAX = 1_048_576

_LINE = re.compile(r"\s*\(in <\w+>:\d+\)")


class _Data:
    """The data that templates see."""

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self._scope = scope

    def of(self, source: TemplateSource) -> tuple[Mapping[str, Any], bool]:
        """The data for this template, and whether they are guarded."""
        needs_guard = source.needs_guard(self._scope)
        return (self._guarded if needs_guard else self._scope), needs_guard

    @cached_property
    def _guarded(self) -> Mapping[str, Any]:
        return {name: guarded(value) for name, value in self._scope.items()}


class Renderer:
    """One template environment for the process. Every call brings its own data."""

    def __init__(self) -> None:
        self._environment = minijinja.Environment(
            fuel=FUEL, undefined_behavior="strict", auto_escape_callback=lambda _name: False, pycompat=False
        )
        for name in self._environment.globals:
            self._environment.remove_global(name)
        texts.add_to(self._environment)

    def render(self, value: Any, scope: Mapping[str, Any]) -> Any:
        """A copy of JSON data with every template resolved. Errors name the path."""
        return self._rendered(value, _Data(scope), "")

    def evaluate(self, expression: str, scope: Mapping[str, Any]) -> Any:
        """The value of a bare expression."""
        return self._value(expression, _Data(scope), "expression")

    def _rendered(self, value: Any, data: _Data, path: str) -> Any:
        if isinstance(value, str):
            return self._text(value, data, path) if "{{" in value or "{%" in value else value
        if isinstance(value, dict):
            return {key: self._rendered(item, data, f"{path}.{key}" if path else key) for key, item in value.items()}
        if isinstance(value, list):
            return [self._rendered(item, data, f"{path}[{index}]") for index, item in enumerate(value)]
        return value

    def _text(self, text: str, data: _Data, path: str) -> Any:
        whole = whole_expression(text)
        if whole is not None:
            return self._value(whole, data, path)
        try:
            source = template_source(text)
            rendered = self._environment.render_str(source.text, **data.of(source)[0])
        except (minijinja.TemplateError, PermanentError) as error:
            raise _failure(path, error) from None
        if len(rendered) > RENDERED_CHARACTERS_MAX:
            raise PermanentError(f"{path}: over {RENDERED_CHARACTERS_MAX} characters of text", type="TEMPLATE_ERROR")
        return rendered

    def _value(self, expression: str, data: _Data, path: str) -> Any:
        try:
            source = expression_source(expression)
            scope, is_guarded = data.of(source)
            value = self._environment.eval_expr(source.text, **scope)
            if value is None and self._environment.eval_expr(f"({source.text}) is undefined", **scope):
                raise PermanentError(f"`{expression.strip()}` is not there", type="TEMPLATE_ERROR")
        except (minijinja.TemplateError, PermanentError) as error:
            raise _failure(path, error) from None
        return unguarded(value) if is_guarded else value


def _failure(path: str, error: Exception) -> PermanentError:
    first_line = str(error).splitlines()[0] if str(error) else "the template failed"
    return PermanentError(f"{path}: {_LINE.sub('', first_line)}", type="TEMPLATE_ERROR")
