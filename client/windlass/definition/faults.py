"""The faults of a definition: values that say what is wrong, and where."""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from windlass.definition.limits import FAULTS_MAX


class Fault(NamedTuple):
    """One thing that is wrong. The path is like `nodes[2].retry.attempts`."""

    path: str
    reason: str
    message: str
    # The id of the node that the path leads into; "" when there is none.
    node: str = ""
    # The line in the text of the definition, counted from 1; 0 when it is unknown.
    line: int = 0


def place_of(node: str, line: int) -> str:
    """`line 12, node fetch`; "" when neither is known."""
    return ", ".join([f"line {line}"] * bool(line) + [f"node {node}"] * bool(node))


class Faults(list[Fault]):
    """A list that keeps the first FAULTS_MAX faults, and asks a generator for no more."""

    def append(self, fault: Fault) -> None:
        if len(self) < FAULTS_MAX:
            super().append(fault)

    def extend(self, faults: Iterable[Fault]) -> None:
        super().extend(islice(faults, FAULTS_MAX - len(self)))


def shown_key(key: str) -> str:
    """A key as a path shows it."""
    return key.replace("\x00", "?")[:100]


def child(path: str, key: str) -> str:
    """The path of a member of the object at `path`."""
    return f"{path}.{shown_key(key)}" if path else shown_key(key)
