"""Two ways to wait a moment, so that one frame or commit carries several items.

A frame wakes up both processes, which is most of the cost of an execution on an idle system. Items that nobody waits
for (the acknowledgement of a report, the count of grants, a slot while the queue is empty) wait for the next frame,
which nearly always follows soon (`Coalescer`). Items that somebody waits for are delayed only under load, where a
batch of ten costs little more than a batch of one (`AdaptivePacer`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from services.chassis.process.clock import Clock

COALESCE_SECONDS: Final = 0.02
# For these two see AdaptivePacer.
ITEM_SECONDS: Final = 0.002
APART_SECONDS_MAX: Final = 0.008
# The timers of the event loop are no more precise.
_PAUSE_SECONDS_MIN: Final = 0.001


class Coalescer:
    """Calls `over` once, a moment after the first `wanted` since the last call."""

    __slots__ = ("_is_waiting", "_over")

    def __init__(self, over: Callable[[], None]) -> None:
        self._over = over
        self._is_waiting = False

    def wanted(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            asyncio.get_running_loop().call_later(COALESCE_SECONDS, self._end)

    def _end(self) -> None:
        self._is_waiting = False
        self._over()


class AdaptivePacer:
    """Delays the batches of a loop that commits all that has gathered.

    While items come faster than one per ITEM_SECONDS, batches begin up to APART_SECONDS_MAX apart, so that fewer of
    them carry the same items. A loop that carries one item in each batch is never delayed. A delay is no longer than a
    batch takes, because on an idle machine, where batches are short, it would cost more than it saves. Network cards
    moderate their interrupts in the same way.
    """

    __slots__ = ("_began", "_clock", "_took", "_usual")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = 0.0
        # Items and seconds of a batch, as moving averages.
        self._usual = 1.0
        self._took = 0.0

    async def begin(self) -> None:
        """Call this before each batch."""
        apart = min(APART_SECONDS_MAX, 2 * self._took, ITEM_SECONDS * (self._usual - 1))
        pause = self._began + apart - self._clock.monotonic()
        if pause >= _PAUSE_SECONDS_MIN:
            await self._clock.sleep(pause)
        self._began = self._clock.monotonic()

    def carried(self, items: int) -> None:
        """Call this after each batch that had any items."""
        self._usual += (items - self._usual) / 4
        self._took += (self._clock.monotonic() - self._began - self._took) / 4
