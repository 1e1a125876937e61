"""Takes the runs of dead runners away, each when that is safe.

A runner is dead when the row of its instance is ENDED. It may still work behind a broken network until it stops by
itself, so work that must not happen twice waits until `granted_again` has passed since the runner was last heard.
"""

from __future__ import annotations

import asyncio
from typing import Final

from services.coordinator.app.owned_executions import OwnedExecutions

# If more instances died, an old one may be reported as new once more.
_REPORTED_MAX: Final = 10_000


class DeadRunners:
    def __init__(self, executions: OwnedExecutions, granted_again: float) -> None:
        self._executions = executions
        self._granted_again = granted_again
        # Oldest first.
        self._reported: dict[str, None] = {}
        # The instances whose other work waits.
        self._awaited: set[str] = set()

    def add(self, instance_id: str, unheard_seconds: float) -> bool:
        """True the first time. The caller repeats this while runs name the instance, because an execution with such a
        run may be taken over at any time."""
        is_new = instance_id not in self._reported
        self._reported[instance_id] = None
        if len(self._reported) > _REPORTED_MAX:
            del self._reported[next(iter(self._reported))]
        wait = self._granted_again - unheard_seconds
        self._executions.runner_lost(instance_id, is_idempotent_only=wait > 0)
        if wait > 0 and instance_id not in self._awaited:
            self._awaited.add(instance_id)
            asyncio.get_running_loop().call_later(wait, self._has_stopped, instance_id)
        return is_new

    def _has_stopped(self, instance_id: str) -> None:
        self._awaited.discard(instance_id)
        self._executions.runner_lost(instance_id, is_idempotent_only=False)
