"""Resolves the templates in a node's config and inputs with minijinja.

A string that is one template keeps the type of its value; with text around the template the result is text. A missing
path is an error of the node (PERMANENT), never an empty string. Templates come from users: they see data only (no
callables, no Python methods, no range), burn bounded fuel and yield bounded text. Only a runner and its child render.

Hazard: fuel counts steps, not the memory and time of one step. Templates that are not plain (`core/plain.py`) must be
rendered in the child.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import minijinja

from windlass.sdk import PermanentError

# Steps of the template machine for one string: far above any real template, far below a second of CPU.
FUEL = 100_000
RENDERED_CHARACTERS_MAX = 1_048_576

_WHOLE = re.compile(r"\s*\{\{((?:(?!\{\{|\}\}).)*)\}\}\s*", re.DOTALL)
# The engine gets Python dicts and lists and would call their methods, so every call in a template is refused.
_SEGMENT = re.compile(r"\{\{(.*?)\}\}|\{%(.*?)%\}", re.DOTALL)
_LITERAL = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_CALL = re.compile(r"[.\]]\s*\w*\s*\(")
_LINE = re.compile(r"\s*\(in <\w+>:\d+\)")


class Renderer:
    """One template environment for the process. Every call brings its own data."""

    def __init__(self) -> None:
        self._environment = minijinja.Environment(
            fuel=FUEL, undefined_behavior="strict", auto_escape_callback=lambda _name: False, pycompat=False
        )
        for name in ("range", "lipsum", "debug", "namespace"):
            self._environment.remove_global(name)

    def render(self, value: Any, scope: Mapping[str, Any], *, path: str = "") -> Any:
        """A copy of JSON data with every template resolved. Errors name the `path`."""
        if isinstance(value, str):
            return self._text(value, scope, path) if "{{" in value or "{%" in value else value
        if isinstance(value, dict):
            return {key: self.render(item, scope, path=f"{path}.{key}" if path else key) for key, item in value.items()}
        if isinstance(value, list):
            return [self.render(item, scope, path=f"{path}[{index}]") for index, item in enumerate(value)]
        return value

    def evaluate(self, expression: str, scope: Mapping[str, Any], *, path: str = "expression") -> Any:
        """The value of a bare expression."""
        _refuse_calls(expression, path)
        try:
            value = self._environment.eval_expr(expression, **scope)
            if value is None and self._environment.eval_expr(f"({expression}) is undefined", **scope):
                raise PermanentError(f"{path}: `{expression.strip()}` is not there", type="TEMPLATE_ERROR")
        except minijinja.TemplateError as error:
            raise PermanentError(_told(path, error), type="TEMPLATE_ERROR") from None
        return value

    def _text(self, text: str, scope: Mapping[str, Any], path: str) -> Any:
        whole = _WHOLE.fullmatch(text)
        if whole is not None:
            return self.evaluate(whole.group(1), scope, path=path)
        for output, statement in _SEGMENT.findall(text):
            _refuse_calls(output or statement, path)
        try:
            rendered = self._environment.render_str(text, **scope)
        except minijinja.TemplateError as error:
            raise PermanentError(_told(path, error), type="TEMPLATE_ERROR") from None
        if len(rendered) > RENDERED_CHARACTERS_MAX:
            raise PermanentError(f"{path}: over {RENDERED_CHARACTERS_MAX} characters of text", type="TEMPLATE_ERROR")
        return rendered


def _refuse_calls(expression: str, path: str) -> None:
    if "(" in expression and _CALL.search(_LITERAL.sub("''", expression)):
        raise PermanentError(f"{path}: a template cannot call methods", type="TEMPLATE_ERROR")


def _told(path: str, error: minijinja.TemplateError) -> str:
    first_line = str(error).splitlines()[0] if str(error) else "the template failed"
    return f"{path}: {_LINE.sub('', first_line)}"
