"""Tells the dispatchers which executions have a journal.

If such an execution is granted again and its rows are gone, its next holder must not begin it anew (journal_loader.py).
A parked or released execution says so itself. This loop is for those that are held for longer, because their holder may
die. It waits between its rounds, so that most executions end without this report.
"""

from __future__ import annotations

from typing import Final

from services.chassis.process.clock import Clock
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.app.ports import Dispatch

_EVERY_SECONDS: Final = 2.0


async def report_begun(executions: OwnedExecutions, dispatch: Dispatch, clock: Clock, lease_scale: float) -> None:
    while True:
        await clock.sleep(_EVERY_SECONDS * lease_scale)
        for owned in executions.by_id.values():
            if owned.has_begun and not owned.is_known_begun:
                owned.is_known_begun = True
                dispatch.begun(owned.execution_id, owned.epoch)
