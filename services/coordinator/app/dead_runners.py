"""Takes the runs of dead runners away, each when that is safe.

A runner is dead when the row of its instance is ENDED. It may still work behind a broken network until it stops by
itself, so work that must not happen twice waits until `granted_again` has passed since the runner was last heard.
"""

from __future__ import annotations

import heapq
from typing import Final

from services.chassis.process.batcher import Level
from services.chassis.process.clock import Clock
from services.coordinator.app.owned_executions import OwnedExecutions

_POLL_SECONDS: Final = 1.0
# If more instances died, an old one may be reported as new once more.
_REPORTED_MAX: Final = 10_000


class DeadRunners:
    def __init__(self, executions: OwnedExecutions, clock: Clock, granted_again: float) -> None:
        self._executions = executions
        self._clock = clock
        self._granted_again = granted_again
        self._due: list[tuple[float, str]] = []
        self._known: set[str] = set()
        # Oldest first.
        self._reported: dict[str, None] = {}
        self._level = Level()

    def add(self, instance_id: str, unheard_seconds: float) -> bool:
        """True the first time. The caller repeats this while runs name the instance, because an execution with such a
        run may be taken over at any time."""
        is_new = instance_id not in self._reported
        self._reported[instance_id] = None
        if len(self._reported) > _REPORTED_MAX:
            del self._reported[next(iter(self._reported))]
        self._give_up_runs_of(instance_id, unheard_seconds)
        return is_new

    def _give_up_runs_of(self, instance_id: str, unheard_seconds: float) -> None:
        wait = self._granted_again - unheard_seconds
        if wait <= 0:
            self._executions.runner_lost(instance_id, is_idempotent_only=False)
            return
        self._executions.runner_lost(instance_id, is_idempotent_only=True)
        if instance_id not in self._known:
            self._known.add(instance_id)
            heapq.heappush(self._due, (self._clock.monotonic() + wait, instance_id))
            self._level.set()

    async def run(self) -> None:
        while True:
            self.run_once()
            now = self._clock.monotonic()
            wait = min(_POLL_SECONDS, self._due[0][0] - now) if self._due else _POLL_SECONDS
            await self._level.wait(max(0.001, wait))

    def run_once(self) -> None:
        now = self._clock.monotonic()
        while self._due and self._due[0][0] <= now:
            _, instance_id = heapq.heappop(self._due)
            self._known.discard(instance_id)
            self._executions.runner_lost(instance_id, is_idempotent_only=False)
