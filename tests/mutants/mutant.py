"""What a mutant is."""

from typing import NamedTuple

from tests.mutants.changes import Change


class Mutant(NamedTuple):
    """A change of what a name in a folder means, and the test that must notice it."""

    name: str
    folder: str
    place: str
    change: Change
    killed_by: str
