"""What the templates of a definition refer to, found before anything runs.

A template may see `input`, `state`, `execution`, and `nodes.<id>` of the nodes before its own. A name that is computed
(`nodes[name]`) cannot be judged here: such a template sees all the nodes before it, and a wrong name is an error of
the run.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from services.api.core.expressions import Allowance
from services.api.core.faults import Fault, child

ROOTS: Final = frozenset({"input", "state", "nodes", "execution"})
_KNOWN: Final = ", ".join(sorted(ROOTS))
# What the engine of templates brings along itself.
_FUNCTIONS: Final = frozenset({"dict"})
# `nodes["fetch"]`: named as clearly as `nodes.fetch`, but the engine of templates does not say so.
_SUBSCRIPT: Final = re.compile(r"""\bnodes\s*\[\s*["']([^"']{1,100})["']\s*\]""")


class TemplateSyntax(NamedTuple):
    """Why a template does not parse, or is not to be read, in words for its author."""

    message: str


class TemplateReader(Protocol):
    def names(self, template: str) -> frozenset[str] | TemplateSyntax:
        """The dotted names that a template reads and does not set itself: `{"nodes.fetch.output.id"}`."""
        ...


class BoundedReader:
    """Has the templates of one definition read, as far as its allowance goes."""

    def __init__(self, reader: TemplateReader) -> None:
        self._reader = reader
        self._allowance = Allowance()

    def names(self, template: str) -> frozenset[str] | TemplateSyntax:
        if excess := self._allowance.excess_of(template):
            return TemplateSyntax(excess)
        return self._reader.names(template)


class Reference(NamedTuple):
    """One template reads the output of one node."""

    path: str
    node: str


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


def read(
    template: str,
    path: str,
    reader: TemplateReader,
    tell: Callable[[Fault], None],
) -> Iterator[Reference]:
    """The nodes that one template refers to; what is wrong with the template itself goes to `tell`."""
    names = reader.names(template)
    if isinstance(names, TemplateSyntax):
        tell(Fault(path, "TEMPLATE_SYNTAX", names.message))
        return
    for name in sorted(names):
        root, _, rest = name.partition(".")
        if root == "nodes":
            if rest:
                yield Reference(path, rest.partition(".")[0])
            else:
                yield from (Reference(path, node) for node in _SUBSCRIPT.findall(template))
        elif root not in ROOTS and root not in _FUNCTIONS:
            tell(Fault(path, "TEMPLATE_REFERENCE", f"{root!r} is unknown; templates see {_KNOWN}"))
