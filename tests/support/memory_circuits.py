"""The circuits in memory: the rules of core/circuits.py on a dictionary, as PostgreSQL has them on rows."""

from __future__ import annotations

from collections.abc import Sequence

from services.chassis.process.clock import Clock
from services.coordinator.app.ports import CircuitChange, CircuitStanding
from services.coordinator.core.circuits import Circuit, CircuitPolicy, CircuitVisit, visited
from services.coordinator.core.values import Instant
from tests.support.memory_queue import Statement, at_once

# By workspace and target.
CircuitRows = dict[tuple[str, str], Circuit]


class MemoryCircuits:
    def __init__(self, rows: CircuitRows, clock: Clock, policy: CircuitPolicy, run: Statement = at_once) -> None:
        self._rows = rows
        self._clock = clock
        self._policy = policy
        self._run = run

    def _now(self) -> Instant:
        return self._clock.epoch_ns() // 1_000

    async def standings(self) -> Sequence[CircuitStanding]:
        def work() -> Sequence[CircuitStanding]:
            now = self._now()
            return [
                CircuitStanding(
                    *key,
                    each.state,
                    each.generation,
                    sum(permit.until > now for permit in each.permits),
                    (each.retry_time - now) / 1e6 if each.retry_time else 0.0,
                )
                for key, each in self._rows.items()
            ]

        return await self._run(work)

    async def visit(self, visits: Sequence[CircuitVisit]) -> Sequence[CircuitChange]:
        def work() -> Sequence[CircuitChange]:
            now = self._now()
            changes: list[CircuitChange] = []
            for visit in sorted(visits, key=lambda each: (each.workspace, each.target)):
                key = (visit.workspace, visit.target)
                if any(visit.failures):
                    self._rows.setdefault(key, Circuit(*key))
                if (before := self._rows.get(key)) is not None:
                    self._rows[key] = visited(before, visit, self._policy, now)
                    changes.append(CircuitChange(before, self._rows[key], now))
            return changes

        return await self._run(work)

    async def forget_idle(self, idle_seconds: float) -> int:
        """Nothing grows old in a test."""
        return 0
