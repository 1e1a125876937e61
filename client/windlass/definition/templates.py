"""What the templates of a definition refer to, told by the parser of the template language before anything runs.

A template may see `input`, `state`, `execution`, and `nodes.<id>` of the nodes before its own. A name that is computed
(`nodes[name]`), and `nodes` by itself, cannot be judged here: such a template sees all the nodes before it, and a wrong
name is an error of the run.

Templates are only parsed here, never rendered: nothing of a user's template runs in the process that asks.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from windlass.definition.expressions import Allowance, spans
from windlass.definition.faults import Fault, child

ROOTS: Final = frozenset({"input", "state", "nodes", "execution"})
_KNOWN: Final = ", ".join(sorted(ROOTS))
# What the engine of templates brings along itself.
_FUNCTIONS: Final = frozenset({"dict"})
# A text that is no subscript of `nodes`, or `nodes["fetch"]`: named as clearly as `nodes.fetch`, but the parser tells
# attributes alone.
_SUBSCRIPT: Final = re.compile(
    r"""\bnodes\s*\[\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*\] | "(?:[^"\\]|\\.)*+" | '(?:[^'\\]|\\.)*+' """,
    re.VERBOSE | re.DOTALL,
)


class TemplateSyntax(Exception):
    """Why a template does not parse, or is not to be read, in words for its author."""


class Reference(NamedTuple):
    """One template reads the output of one node."""

    path: str
    # None: of every node before it.
    node: str | None


class TemplateParser:
    """Has the templates of one definition read, as far as its allowance goes."""

    def __init__(self) -> None:
        # The same engine that renders them in the runner, so that both agree on syntax.
        import minijinja

        self._engine = minijinja
        self._environment = minijinja.Environment()
        self._allowance = Allowance()

    def references(self, template: str, path: str, tell: Callable[[Fault], None]) -> Iterator[Reference]:
        """The nodes that one template refers to; what is wrong with the template itself goes to `tell`."""
        try:
            subscripts, names = self._names(template)
        except TemplateSyntax as fault:
            tell(Fault(path, "TEMPLATE_SYNTAX", str(fault)))
            return
        for name in sorted(names):
            root, _, rest = name.partition(".")
            node = rest.partition(".")[0]
            if root == "nodes":
                yield Reference(path, subscripts.get(node, node) if rest else None)
            elif root not in ROOTS and root not in _FUNCTIONS:
                tell(Fault(path, "TEMPLATE_REFERENCE", f"{root!r} is unknown; templates see {_KNOWN}"))

    def _names(self, template: str) -> tuple[dict[str, str], set[str]]:
        """The dotted names that a template reads and does not set itself, like `nodes.fetch.output.id`, and which node
        is meant by each attribute that stands for a subscript."""
        if excess := self._allowance.excess_of(template):
            raise TemplateSyntax(excess)
        subscripts, attributes = _with_attributes(template) if "[" in template else ({}, template)
        try:
            return subscripts, self._environment.undeclared_variables_in_str(attributes, nested=True)
        except self._engine.TemplateError as failure:
            raise TemplateSyntax(str(failure).splitlines()[0][:300]) from None


def _with_attributes(template: str) -> tuple[dict[str, str], str]:
    """Each `nodes["fetch"]` written as an attribute that no node has the name of, with what it stands for."""
    subscripts: dict[str, str] = {}
    parts, place = [], 0
    mark = "_"
    while f"{mark}0" in template:
        mark += "_"

    def attribute(found: re.Match[str]) -> str:
        text = found[1] if found[1] is not None else found[2]
        if text is None:
            return found[0]
        name = f"{mark}0{len(subscripts)}"
        subscripts[name] = text
        return f"nodes.{name}"

    for start, stop in spans(template):
        parts += [template[place:start], _SUBSCRIPT.sub(attribute, template[start:stop])]
        place = stop
    return subscripts, "".join([*parts, template[place:]])


def is_template(text: str) -> bool:
    return "{{" in text or "{%" in text


def texts_of(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Each text in a JSON value with its path, in reading order; keys are no templates."""
    todo: list[tuple[Any, str]] = [(value, path)]
    while todo:
        here, where = todo.pop()
        if isinstance(here, str):
            yield here, where
        elif isinstance(here, dict):
            todo.extend((inner, child(where, key)) for key, inner in reversed(here.items()))
        elif isinstance(here, list):
            todo.extend((inner, f"{where}[{index}]") for index, inner in reversed(list(enumerate(here))))
