"""Bookkeeping of children: the executions that nodes start."""

from services.coordinator.core import events as ev
from services.coordinator.core.state import ChildExecution, Execution


def child_requested(execution: Execution, event: ev.ChildRequested) -> None:
    child = ChildExecution(
        event.child_execution_id,
        event.workflow,
        event.version,
        event.input,
        event.deadline_time,
        event.is_cancelled_with_parent,
        event.run,
    )
    wait = execution.waits[event.key]
    wait.child = child
    execution.children[child.execution_id] = wait
    execution.unstarted[child.execution_id] = child
    if not wait.work.first_time:
        # The retry budget counts from here if no runner has rendered the node.
        wait.work.first_time = event.time
