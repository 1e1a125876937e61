"""Whether the machine is fast enough for the kit to judge a runner by the clock.

The kit and the runner share a machine. While the kit itself runs late, its answers keep the runner waiting, and the
runner may be late for the same reason. What was seen then says nothing about the runner.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from windlass.conformance.coordinator import BEAT

_LOOK_SECONDS: Final = 0.05
# The shortest time in which a story asks something of a runner is half a beat.
_LATE_SECONDS: Final = BEAT / 3


class Pace:
    """How late the event loop of the kit has been at worst while `watch` ran."""

    def __init__(self) -> None:
        self._due = time.monotonic() + _LOOK_SECONDS
        self._worst = 0.0

    @property
    def late_seconds(self) -> float:
        return max(self._worst, time.monotonic() - self._due)

    @property
    def is_too_slow(self) -> bool:
        return self.late_seconds > _LATE_SECONDS

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(self._due - time.monotonic())
            self._worst = self.late_seconds
            self._due = time.monotonic() + _LOOK_SECONDS
