"""What is wrong with a definition, and where: values, so that all of them can be told at once."""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from windlass.definition.limits import FAULTS_MAX


class Fault(NamedTuple):
    """`path` as its author would point at it: `nodes[2].retry.attempts`."""

    path: str
    reason: str
    message: str
    # The id of the node that the path leads into; "" where there is none.
    node: str = ""
    # Of the text that the definition was read from, from 1 on; 0 where it is unknown.
    line: int = 0


def place_of(node: str, line: int) -> str:
    """`line 12, node fetch`; "" where neither is known."""
    return ", ".join([f"line {line}"] * bool(line) + [f"node {node}"] * bool(node))


class Faults(list[Fault]):
    """The first FAULTS_MAX; a generator of them is not asked for more."""

    def append(self, fault: Fault) -> None:
        if len(self) < FAULTS_MAX:
            super().append(fault)

    def extend(self, faults: Iterable[Fault]) -> None:
        super().extend(islice(faults, FAULTS_MAX - len(self)))


def shown_key(key: str) -> str:
    """A key as it stands in a path."""
    return key.replace("\x00", "?")[:100]


def child(path: str, key: str) -> str:
    """The path of a member of the object at `path`."""
    return f"{path}.{shown_key(key)}" if path else shown_key(key)
