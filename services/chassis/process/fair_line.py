"""A fair line for few places: workspaces take turns, and each has at most one place at a time, or a few.

Only so many requests of each workspace stand in the line for the places; its others wait behind them. So a workspace
with many requests waits for itself. The next request of another workspace waits at most for the running turns and for
those of the requests that stand before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

WAITING_MAX: Final = 1_000


class NoTurn(Exception):
    """The turn did not come in time, or too many requests of the workspace wait for theirs."""


class _Workspace:
    def __init__(self, places: int) -> None:
        self.turn = asyncio.Semaphore(places)
        self.waiting = 0


class FairLine:
    """The line of one event loop."""

    def __init__(self, places: int, *, places_of_each: int = 1) -> None:
        self._places = asyncio.Semaphore(places)
        self._places_of_each = places_of_each
        # Each is kept by the requests that wait or are served.
        self._workspaces: WeakValueDictionary[str, _Workspace] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, workspace: str, seconds: float | None) -> AsyncIterator[None]:
        """Raises NoTurn when the turn does not come within `seconds` (None: it may take any time)."""
        own = self._workspaces.setdefault(workspace, _Workspace(self._places_of_each))
        if own.waiting >= WAITING_MAX:
            raise NoTurn(f"too many requests of {workspace} wait")
        async with AsyncExitStack() as held:
            own.waiting += 1
            try:
                async with asyncio.timeout(seconds):
                    await held.enter_async_context(own.turn)
                    await held.enter_async_context(self._places)
            except TimeoutError:
                raise NoTurn(f"no turn came in {seconds} s") from None
            finally:
                own.waiting -= 1
            yield
