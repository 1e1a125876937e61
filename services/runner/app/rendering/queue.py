"""Where runs wait for the child that renders: first come, first served, in one thread for all.

Whoever waits has not begun. It is neither a thread nor an attempt, and can leave: stopped, or sent away because it has
waited too long, it is never rendered. Whoever is at work stays until it is done, which the limits of the child bound.

Hazard: the end of this process waits for the thread; `RendererProcess.close` ends what it is at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class WaitedTooLong(Exception):
    """It was not begun, and is not going to be."""


class RenderingQueue:
    """For one event loop, which alone calls it; `close` may be called from anywhere."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rendering")
        self._since: dict[Future[Any], float] = {}

    async def call(self, now: float, function: Callable[..., Any], *given: Any) -> Any:
        """What the function returns or raises, once those before it are done. `now` in monotonic seconds."""
        place = self._thread.submit(function, *given)
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
        """Whoever came before this time and still waits."""
        for place, since in list(self._since.items()):
            if since < before and place.cancel():
                del self._since[place]

    def close(self) -> None:
        """Begin nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
