"""Wakes each execution when its next timer is due: retries, sleeps, deadlines, the backstop of node timeouts.

There is one heap for all executions. An entry counts only while it is the time that its execution asked for last, so a
change costs one push. Many executions end long before their deadline; the heap is rebuilt when most of its entries are
dead, so its size is bounded by the number of owned executions.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Final

from services.chassis.process.batcher import Level
from services.chassis.process.clock import Clock
from services.coordinator.app.owned_execution import OwnedExecution

_DEAD_MIN: Final = 10_000
# A change of the wall clock is noticed within this time.
_POLL_SECONDS: Final = 1.0


class Timers:
    """`due` is called with the executions whose time has come."""

    def __init__(self, clock: Clock, due: Callable[[list[OwnedExecution]], None]) -> None:
        self._clock = clock
        self._due = due
        self._heap: list[tuple[int, int, OwnedExecution]] = []
        self._numbers = itertools.count()
        self._is_earlier = Level()
        self._armed = 0

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, owned: OwnedExecution, instant: int) -> None:
        """`instant` is in µs since 1970; 0 removes the timer."""
        if instant == owned.wake:
            return
        owned.wake = instant
        if instant:
            heapq.heappush(self._heap, (instant, next(self._numbers), owned))
            if instant < self._armed or not self._armed:
                self._is_earlier.set()

    def trim(self, alive: Iterable[OwnedExecution], count: int) -> None:
        """Removes dead entries once they are most of the heap."""
        if len(self._heap) > _DEAD_MIN + 4 * count:
            self._heap = [(owned.wake, next(self._numbers), owned) for owned in alive if owned.wake]
            heapq.heapify(self._heap)

    async def run(self) -> None:
        while True:
            self.run_once()
            await self._is_earlier.wait(self._seconds_to_next())
            await asyncio.sleep(0)

    def run_once(self) -> None:
        now = self._clock.epoch_ns() // 1_000
        due: list[OwnedExecution] = []
        while self._heap and self._heap[0][0] <= now:
            instant, _, owned = heapq.heappop(self._heap)
            if owned.wake == instant and not owned.is_dropped:
                owned.wake = 0
                due.append(owned)
        if due:
            self._due(due)

    def _seconds_to_next(self) -> float:
        if not self._heap:
            self._armed = 0
            return _POLL_SECONDS
        self._armed = self._heap[0][0]
        seconds = (self._armed - self._clock.epoch_ns() // 1_000) / 1e6
        # This is slightly late, because no timer may fire before its time (S19).
        return min(_POLL_SECONDS, max(0.0, seconds) + 0.0005)
