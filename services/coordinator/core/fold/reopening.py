"""Bookkeeping of a reopening: the named work is new, and everything else keeps its outcome."""

from services.coordinator.core import events as ev
from services.coordinator.core.fold.answers import remember
from services.coordinator.core.fold.graph import release_targets
from services.coordinator.core.fold.timers import set_timer
from services.coordinator.core.state import Execution, TimerKind, Work, WorkState


def execution_reopened(execution: Execution, event: ev.ExecutionReopened) -> None:
    execution.epoch = event.epoch
    execution.holder = event.holder
    if execution.final_state is not None:
        _open(execution, event)
    execution.first_failure = event.first_failure
    for key, unresolved, taken, blocked, overrides, begun_by in event.work:
        _end_hold(execution, key.node)
        node = execution.definition.nodes[key.node]
        work = Work(key, node, unresolved, taken, blocked, overrides=overrides, begun_by=begun_by or None)
        execution.work[key] = execution.current[key.node] = work
    release_targets(execution, event.then)
    remember(execution, event.message_id)


def _end_hold(execution: Execution, node_id: str) -> None:
    """If the old work was held for a person, it has failed now."""
    before = execution.current.get(node_id)
    if before is not None and before.state is WorkState.WAITING:
        del execution.waits[before.key]
        before.state = WorkState.FAILED


def _open(execution: Execution, event: ev.ExecutionReopened) -> None:
    execution.final_state = execution.output = execution.error = execution.stop = execution.compensation = None
    execution.end_time = 0
    # The end need not be reported any more.
    execution.obligations.clear()
    if event.deadline_time:
        execution.deadline, execution.deadline_from = event.deadline_time, event.time
        set_timer(execution, event.deadline_time, TimerKind.DEADLINE)
