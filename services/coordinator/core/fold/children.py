"""Bookkeeping of children: the executions that nodes start, and what is owed to them."""

from typing import assert_never

from services.coordinator.core import events as ev
from services.coordinator.core.state import CancelChild, ChildExecution, Execution


def apply_to_children(execution: Execution, event: ev.OfChild) -> None:
    match event:
        case ev.ChildRequested():
            _child_requested(execution, event)
        case ev.ChildStarted() | ev.ChildRefused():
            del execution.unstarted[event.child_execution_id]
        case ev.ChildCancelOrdered():
            cancel = CancelChild(event.child_execution_id, event.key, event.run)
            execution.uncancelled[event.child_execution_id] = cancel
        case ev.ChildCancelTold():
            del execution.uncancelled[event.child_execution_id]
        case _:
            assert_never(event)


def _child_requested(execution: Execution, event: ev.ChildRequested) -> None:
    child = ChildExecution(
        event.child_execution_id,
        event.workflow,
        event.version,
        event.input,
        event.deadline_time,
        event.is_cancelled_with_parent,
        event.key,
        event.run,
    )
    wait = execution.waits[event.key]
    wait.child = child
    wait.work.child_execution_id = child.execution_id
    execution.children[child.execution_id] = wait
    execution.unstarted[child.execution_id] = child
    if not wait.work.first_time:
        # The retry budget counts from here if no runner has rendered the node.
        wait.work.first_time = event.time
