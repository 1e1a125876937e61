"""Bookkeeping of pauses.

While an execution is paused, its `paused_by` keeps work from being granted (`handlers/leasing.py`), control nodes from
beginning (`advance.py`) and its timers from firing (`timers.py`).
"""

from services.coordinator.core import events as ev
from services.coordinator.core.fold.answers import remember
from services.coordinator.core.fold.timers import hold_timers, release_timers
from services.coordinator.core.state import Execution, PausedBy


def execution_paused(execution: Execution, event: ev.ExecutionPaused) -> None:
    execution.paused_by = PausedBy(event.caller, event.reason, event.time)
    hold_timers(execution)
    remember(execution, event.message_id)


def execution_resumed(execution: Execution, event: ev.ExecutionResumed) -> None:
    end_pause(execution)
    remember(execution, event.message_id)


def end_pause(execution: Execution) -> None:
    if execution.paused_by is not None:
        execution.paused_by = None
        release_timers(execution)
