"""The queue in which runs wait for a child that renders. Workspaces take turns (children.py).

A call that waits has not begun: it costs neither a thread nor an attempt. When its run is stopped, or when it has
waited too long, it leaves the queue and is never rendered. A call that has begun is finished; the child's limits bound
how long that takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from services.rendering.children import RenderingChildren

T = TypeVar("T")


class WaitedTooLong(Exception):
    """The call has waited too long and will never begin."""


class RenderingQueue:
    """Belongs to one event loop."""

    def __init__(self, children: RenderingChildren) -> None:
        self._children = children
        self._since: dict[Future[Any], float] = {}

    async def call(self, workspace: str, now: float, function: Callable[[], T]) -> T:
        """Call the function when it is the turn of the workspace. `now` is in monotonic seconds."""
        place = self._children.submit(workspace, function)
        self._since[place] = now
        try:
            return await asyncio.wrap_future(place)
        except asyncio.CancelledError:
            if place not in self._since:
                raise WaitedTooLong from None
            raise
        finally:
            self._since.pop(place, None)

    def send_away(self, before: float) -> None:
        """Remove the calls that came before this time and still wait. They raise WaitedTooLong."""
        for place, since in list(self._since.items()):
            if since < before and place.cancel():
                del self._since[place]
