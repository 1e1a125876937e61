"""Tends the worker at a fixed period: its window narrows, and runs that wait too long are handed back."""

from __future__ import annotations

from typing import Protocol

from services.chassis.process.clock import Clock

PERIOD_SECONDS = 0.5


class Tended(Protocol):
    def tend(self) -> None: ...


class WorkerTender:
    """One look at the worker every period."""

    def __init__(self, worker: Tended, clock: Clock) -> None:
        self._worker = worker
        self._clock = clock

    def run_once(self) -> None:
        self._worker.tend()

    async def run(self) -> None:
        while True:
            await self._clock.sleep(PERIOD_SECONDS)
            self.run_once()
