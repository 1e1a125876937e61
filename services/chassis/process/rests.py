"""Lets long work share its event loop: it rests as soon as it has held the loop for some milliseconds.

The work is done in steps, and only a single step is never interrupted. After each rest it may hold the loop as long
again, so whatever else the loop has to do gets at least half of its time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeVar

from services.chassis.process.clock import Clock

_Result = TypeVar("_Result")

SECONDS: Final = 0.005


class Rests:
    """Of one piece of work."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()

    async def step(self) -> None:
        """A step is done."""
        if self._clock.monotonic() - self._since >= SECONDS:
            await self._clock.sleep(SECONDS)
            self._since = self._clock.monotonic()

    async def through(self, steps: Generator[None, None, _Result]) -> _Result:
        """Do all these steps."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: _Result = end.value
                return result
            await self.step()
