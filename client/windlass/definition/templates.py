"""Finds what the templates of a definition refer to, with the parser of the template language, before anything runs.

A template may read `input`, `state`, `execution`, and `nodes.<id>` of the nodes before its own. A computed name
(`nodes[name]`), and `nodes` by itself, cannot be checked here: such a template gets all nodes before it, and a wrong
name is an error of the run.

Templates are only parsed here, never rendered: no user's template runs in this process.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from windlass.definition.expressions import Allowance, spans
from windlass.definition.faults import Fault, child
from windlass.definition.words import call_in

ROOTS: Final = frozenset({"input", "state", "nodes", "execution"})
# Matches `nodes["fetch"]`, which is as clear as `nodes.fetch`, but the parser reports only attributes. It also matches
# other string literals, so that nothing inside them is taken for a subscript.
_SUBSCRIPT: Final = re.compile(
    r"""\bnodes\s*\[\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*\] | "(?:[^"\\]|\\.)*+" | '(?:[^'\\]|\\.)*+' """,
    re.VERBOSE | re.DOTALL,
)


class TemplateText(NamedTuple):
    """A text of a definition that is a template."""

    template: str
    path: str
    # What it sees besides ROOTS.
    more: tuple[str, ...] = ()


class Reference(NamedTuple):
    """A template reads the output of a node."""

    path: str
    # None stands for every node before it.
    node: str | None


class TemplateParser:
    """Parses the templates of one definition, within its allowance of long expressions."""

    def __init__(self) -> None:
        # The runner renders with the same engine, so both agree on the syntax.
        import minijinja

        self._engine = minijinja
        self._environment = minijinja.Environment()
        self._allowance = Allowance()

    def references(self, text: "TemplateText", tell: Callable[[Fault], None]) -> Iterator[Reference]:
        """The nodes that a template reads. The template's own faults go to `tell`."""
        template, path, more = text
        if excess := self._allowance.excess_of(template):
            tell(Fault(path, "TEMPLATE_SYNTAX", excess))
            return
        subscripts, attributes = _with_attributes(template) if "[" in template else ({}, template)
        try:
            # The dotted names that the template reads and does not set itself, like `nodes.fetch.output.id`.
            names = self._environment.undeclared_variables_in_str(attributes, nested=True)
        except self._engine.TemplateError as failure:
            tell(Fault(path, "TEMPLATE_SYNTAX", str(failure).splitlines()[0][:300]))
            return
        if call := call_in(template):
            tell(Fault(path, "TEMPLATE_CALL", f"`{call}` is a call; templates call nothing"))
            return
        for name in sorted(names):
            root, _, rest = name.partition(".")
            node = rest.partition(".")[0]
            if root == "nodes":
                yield Reference(path, subscripts.get(node, node) if rest else None)
            elif root not in ROOTS and root not in more:
                known = ", ".join(sorted(ROOTS.union(more)))
                tell(Fault(path, "TEMPLATE_REFERENCE", f"{root!r} is unknown; templates here see {known}"))


def _with_attributes(template: str) -> tuple[dict[str, str], str]:
    """Replace each `nodes["fetch"]` by an attribute that is no node's name; return what each stands for."""
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
    """Each text in a JSON value with its path, in reading order. Keys are left out, as they are no templates."""
    todo: list[tuple[Any, str]] = [(value, path)]
    while todo:
        here, where = todo.pop()
        if isinstance(here, str):
            yield here, where
        elif isinstance(here, dict):
            todo.extend((inner, child(where, key)) for key, inner in reversed(here.items()))
        elif isinstance(here, list):
            todo.extend((inner, f"{where}[{index}]") for index, inner in reversed(list(enumerate(here))))
