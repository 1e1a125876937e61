"""The queue in which runs wait for the child that renders. One thread serves them in order.

A call that waits has not begun: it costs neither a thread nor an attempt. When its run is stopped, or when it has
waited too long, it leaves the queue and is never rendered. A call that has begun is finished; the child's limits bound
how long that takes.

Hazard: the end of this process waits for the thread. `RendererProcess.close` ends the call that the thread waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class WaitedTooLong(Exception):
    """The call has waited too long and will never begin."""


class RenderingQueue:
    """Belongs to one event loop. Only `close` may be called from elsewhere."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rendering")
        self._since: dict[Future[Any], float] = {}

    async def call(self, now: float, function: Callable[[], T]) -> T:
        """Call the function when the calls before it are done. `now` is in monotonic seconds."""
        place = self._thread.submit(function)
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

    def close(self) -> None:
        """Begin nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
