"""Clocks are handed in, so that a test can move the time instead of waiting for it.

Never mix the two kinds of time. The wall time (`now`, `epoch_ns`) is for people, and it can jump. The monotonic
time is the only one by which a process may judge its own leases and deadlines.
Hazard: neither is valid on another machine. Only the database judges when something shared expires.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from datetime import UTC, datetime, timedelta
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

    def epoch_ns(self) -> int:
        return time.time_ns()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """For tests. Time stands still until `advance`, and sleepers wake in the order of their due times."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._wall = start
        self._elapsed = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._wall

    def epoch_ns(self) -> int:
        whole = self._wall - datetime(1970, 1, 1, tzinfo=UTC)
        return (whole.days * 86_400 + whole.seconds) * 1_000_000_000 + whole.microseconds * 1_000

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), woken))
        await woken

    @property
    def sleepers(self) -> int:
        return sum(not woken.done() for _, _, woken in self._sleepers)

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("monotonic time does not go back, use shift_wall")
        self._elapsed += seconds
        self._wall += timedelta(seconds=seconds)
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            woken = heapq.heappop(self._sleepers)[2]
            if not woken.done():  # else its sleeper was cancelled
                woken.set_result(None)

    def shift_wall(self, seconds: float) -> None:
        """Change the wall time alone, as an administrator or NTP does."""
        self._wall += timedelta(seconds=seconds)
