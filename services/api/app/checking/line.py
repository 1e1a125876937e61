"""A fair line for few places: workspaces take turns, and each has at most one place at a time.

So a workspace that asks for much waits for itself. Another one's next request waits at most for the turns that are
going on and one turn of each workspace that came before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

WAITING_MAX: Final = 1_000


class FairLine:
    """For one event loop."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._served: set[str] = set()
        # By workspace, in the order of their turns; none is empty.
        self._waiting: dict[str, deque[asyncio.Event]] = {}

    @asynccontextmanager
    async def turn(self, workspace: str, seconds: float) -> AsyncIterator[None]:
        """Raises TimeoutError when the turn does not come within `seconds`, or too many of the workspace wait."""
        await self._enter(workspace, seconds)
        try:
            yield
        finally:
            self._leave(workspace)

    async def _enter(self, workspace: str, seconds: float) -> None:
        own = self._waiting.setdefault(workspace, deque())
        if len(own) >= WAITING_MAX:
            raise TimeoutError
        place = asyncio.Event()
        own.append(place)
        self._admit()
        try:
            async with asyncio.timeout(seconds):
                await place.wait()
        except BaseException:
            # The turn may have come just as its owner gave up.
            if place.is_set():
                self._leave(workspace)
            else:
                self._forget(workspace, place)
            raise

    def _leave(self, workspace: str) -> None:
        self._free += 1
        self._served.discard(workspace)
        self._admit()

    def _admit(self) -> None:
        for workspace in [each for each in self._waiting if each not in self._served][: self._free]:
            own = self._waiting.pop(workspace)
            own.popleft().set()
            self._free -= 1
            self._served.add(workspace)
            if own:
                self._waiting[workspace] = own

    def _forget(self, workspace: str, place: asyncio.Event) -> None:
        own = self._waiting[workspace]
        own.remove(place)
        if not own:
            del self._waiting[workspace]
