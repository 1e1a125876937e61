"""Marks a row as DISPATCHED some time after its holder has acknowledged the grant.

A mark is for people, and for the search for lost grants. It is written late and in batches, so that a short execution
is final before it costs a write. A lost mark costs one question to the holder.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.clock import Clock
from services.dispatcher.app.ports import Housekeeping

MARKS_WAITING_MAX: Final = 50_000
_BATCH: Final = 2_000
_PAUSE_SECONDS: Final = 0.1


class DispatchedMarks:
    def __init__(self, *, housekeeping: Housekeeping, clock: Clock) -> None:
        self._housekeeping = housekeeping
        self._clock = clock
        # Acknowledged since the last pause, and before: each waits for one to two pauses.
        self._young: dict[str, int] = {}
        self._old: dict[str, int] = {}

    def taken(self, leases: Iterable[tuple[str, int]]) -> None:
        if len(self._young) < MARKS_WAITING_MAX:
            self._young.update(leases)

    def over(self, execution_ids: Iterable[str]) -> None:
        """These were reported, so they need no mark any more."""
        for execution_id in execution_ids:
            if self._young.pop(execution_id, None) is None:
                self._old.pop(execution_id, None)

    async def run(self) -> None:
        while True:
            await self._clock.sleep(_PAUSE_SECONDS)
            await self.run_once()

    async def run_once(self) -> None:
        while self._old:
            batch = [*self._old.items()][:_BATCH]
            try:
                await self._housekeeping.mark_dispatched(batch)
            except DependencyUnavailable:
                return
            for execution_id, _ in batch:
                self._old.pop(execution_id, None)
        self._old, self._young = self._young, {}
