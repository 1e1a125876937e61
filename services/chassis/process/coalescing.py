"""What is not worth a frame or a commit of its own waits a moment for one that happens anyway, or for others like it.

A frame costs both processes a wake-up, which on an idle system is most of what an execution costs. Nobody waits for
the acknowledgement of a report, for the count of taken grants or for a slot while the queue is empty, and nearly always
something follows at once that takes them along (`Coalescer`). What somebody does wait for is held up only while so much
goes on that waiting is the shorter way: a turn costs nearly as much with one item as with ten (`AdaptivePacer`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from services.chassis.process.clock import Clock

COALESCE_SECONDS: Final = 0.02
# Faster than this they come together: see AdaptivePacer.
ITEM_SECONDS: Final = 0.002
TURN_SECONDS: Final = 0.008
# The loop's timers know no less.
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
    """Of a loop that commits all that has gathered, turn by turn.

    While items come faster than one in ITEM_SECONDS, its turns begin up to TURN_SECONDS apart, so that fewer of them
    carry the same; a loop that carries one thing at a time turns at once, however fast. It rests no longer than it
    worked: on a machine with time to spare a turn is soon done, and waiting for company would cost more than it
    saves; on a full one it takes long, and so does the rest. Network cards moderate their interrupts likewise.
    """

    __slots__ = ("_began", "_clock", "_took", "_usual")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = 0.0
        # Of a turn, the latest ones counting most: its items, and its seconds.
        self._usual = 1.0
        self._took = 0.0

    async def begin(self) -> None:
        """Before each turn."""
        apart = min(TURN_SECONDS, 2 * self._took, ITEM_SECONDS * (self._usual - 1))
        pause = self._began + apart - self._clock.monotonic()
        if pause >= _PAUSE_SECONDS_MIN:
            await self._clock.sleep(pause)
        self._began = self._clock.monotonic()

    def carried(self, items: int) -> None:
        """After each turn that had any."""
        self._usual += (items - self._usual) / 4
        self._took += (self._clock.monotonic() - self._began - self._took) / 4
