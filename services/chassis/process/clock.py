"""Clocks are handed in, so that a test can move the time instead of waiting for it.

Never mix the two kinds of time. The wall time (`now`, `epoch_ns`) is for people, and it can jump. The monotonic
time is the only one by which a process may judge its own leases and deadlines.

Hazard: neither is valid on another machine. Only the database judges when something shared expires.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall time, in UTC and with its time zone."""
        ...

    def epoch_ns(self) -> int:
        """Wall time in nanoseconds since 1970, for spans and identifiers."""
        ...

    def monotonic(self) -> float:
        """Seconds that only go forward, from an arbitrary start."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return when `monotonic` has advanced by `seconds`."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    # Each step asks for these some ten times, so they are the functions themselves.
    epoch_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
