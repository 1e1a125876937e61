"""What is wrong with a definition, and where: values, so that all of them can be told at once."""

from typing import NamedTuple


class Fault(NamedTuple):
    """`path` as its author would point at it: `nodes[2].retry.attempts`."""

    path: str
    reason: str
    message: str


def child(path: str, key: str) -> str:
    """The path of a member of the object at `path`."""
    shown = key.replace("\x00", "?")[:100]
    return f"{path}.{shown}" if path else shown
