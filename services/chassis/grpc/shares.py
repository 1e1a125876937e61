"""Places that owners share fairly, without a fixed limit for each owner.

An owner may take one more place while it has fewer than are free. So a single owner gets at most half of all places,
two get a third each, and so on: an owner that has none finds a place until there are about as many owners as places.
Places may also be units of something, like memory, of which an owner takes many at once.
"""

from __future__ import annotations


class Shares:
    def __init__(self, places: int) -> None:
        self._free = places
        self._taken: dict[str, int] = {}

    def take(self, owner: str, *, portions: int = 1, places: int = 1) -> bool:
        """Take one place, or several. With two portions the owner gets half as many, a third of all, and so on."""
        taken = self._taken.get(owner, 0) + places
        if (taken - 1) * portions >= self._free - (places - 1):
            return False
        self._taken[owner] = taken
        self._free -= places
        return True

    def give_back(self, owner: str, *, places: int = 1) -> None:
        self._free += places
        left = self._taken[owner] - places
        if left:
            self._taken[owner] = left
        else:
            del self._taken[owner]
