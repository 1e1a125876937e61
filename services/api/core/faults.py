"""What is wrong with a definition, and where: values, so that all of them can be told at once."""

from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

FAULTS_MAX: Final = 1_000


class Fault(NamedTuple):
    """`path` as its author would point at it: `nodes[2].retry.attempts`."""

    path: str
    reason: str
    message: str


class Faults(list[Fault]):
    """The first FAULTS_MAX; a generator of them is not asked for more."""

    def append(self, fault: Fault) -> None:
        if len(self) < FAULTS_MAX:
            super().append(fault)

    def extend(self, faults: Iterable[Fault]) -> None:
        super().extend(islice(faults, FAULTS_MAX - len(self)))


def child(path: str, key: str) -> str:
    """The path of a member of the object at `path`."""
    shown = key.replace("\x00", "?")[:100]
    return f"{path}.{shown}" if path else shown
