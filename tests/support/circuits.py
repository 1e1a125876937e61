"""The circuits of all coordinators in memory. They pass the same contract suite as those in PostgreSQL."""

from collections.abc import Sequence
from typing import Final

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.clock import Clock, SystemClock
from services.coordinator.app.ports import CircuitChange, CircuitsFull, CircuitStanding
from services.coordinator.core.circuits import Circuit, CircuitPolicy, CircuitVisit, opened_by_hand, reset, visited
from services.coordinator.core.values import SECOND, Instant

CIRCUITS_MAX: Final = 1_000


class MemoryCircuits:
    """Several with the same `rows` are those of several coordinators. The clock stands for the database's."""

    def __init__(self, policy: CircuitPolicy, rows: dict[tuple[str, str], Circuit], clock: Clock | None = None) -> None:
        self.is_away = False
        self.circuits_max = CIRCUITS_MAX
        self._policy = policy
        self._rows = rows
        self._clock = clock or SystemClock()

    def _now(self) -> Instant:
        if self.is_away:
            raise DependencyUnavailable("the database", "stopped by the test")
        return self._clock.epoch_ns() // 1_000

    async def standings(self) -> Sequence[CircuitStanding]:
        now = self._now()
        return [
            CircuitStanding(
                *key,
                row.state.value,
                row.generation,
                sum(each.until > now for each in row.permits),
                (row.retry_time - now) / SECOND if row.retry_time else 0.0,
            )
            for key, row in self._rows.items()
        ]

    async def visit(self, visits: Sequence[CircuitVisit]) -> Sequence[CircuitChange]:
        now, changes = self._now(), []
        for each in visits:
            key = each.workspace, each.target
            before = self._rows.get(key) or (self._added(*key) if any(each.failures) else None)
            if before is not None:
                self._rows[key] = visited(before, each, self._policy, now)
                changes.append(CircuitChange(before, self._rows[key], now))
        return changes

    def _added(self, workspace: str, target: str) -> Circuit | None:
        count = sum(each.workspace == workspace for each in self._rows.values())
        return Circuit(workspace, target) if count < self.circuits_max else None

    async def page(self, workspace: str, state: str, prefix: str, after: str, limit: int) -> Sequence[Circuit]:
        found = [
            row
            for row in self._rows.values()
            if row.workspace == workspace and row.target > after and row.target.startswith(prefix)
            if state in ("", row.state.value)
        ]
        return sorted(found, key=lambda row: row.target)[:limit]

    async def get(self, workspace: str, target: str) -> Circuit | None:
        return self._rows.get((workspace, target))

    async def reset(self, workspace: str, target: str) -> Circuit | None:
        if found := self._rows.get((workspace, target)):
            self._rows[workspace, target] = reset(found)
        return self._rows.get((workspace, target))

    async def open(self, workspace: str, target: str, until: Instant) -> Circuit:
        found = self._rows.get((workspace, target)) or self._added(workspace, target)
        if found is None:
            raise CircuitsFull
        opened = self._rows[workspace, target] = opened_by_hand(found, until, self._now())
        return opened

    async def forget_idle(self, idle_seconds: float) -> int:
        now = self._now()
        gone = [
            key
            for key, row in self._rows.items()
            if max(row.last_failure_time, row.open_time, row.retry_time) < now - idle_seconds * SECOND
            if not any(each.until > now for each in row.permits)
            if not any(each.until > now for each in row.waiting)
        ]
        for key in gone:
            del self._rows[key]
        return len(gone)
