"""Bookkeeping of waits."""

from services.coordinator.core import events as ev
from services.coordinator.core.fold.runs import run_of
from services.coordinator.core.fold.timers import set_timer
from services.coordinator.core.state import Execution, TimerKind, Wait, WorkState


def wait_started(execution: Execution, event: ev.WaitStarted) -> None:
    run = run_of(execution, event)
    work = run.work
    work.state = WorkState.WAITING
    wait = execution.waits[event.key] = Wait(work, event.kind, event.due_time)
    if event.due_time:
        wait.timer = set_timer(execution, event.due_time, TimerKind.WAIT, wait)


def wait_ended(execution: Execution, event: ev.WaitEnded) -> None:
    wait = execution.waits.pop(event.key)
    wait.timer = 0
    wait.work.state = WorkState.BEGUN
    if wait.child is not None:
        # Its end came before the answer to its start, or its start was refused.
        execution.unstarted.pop(wait.child.execution_id, None)
        del execution.children[wait.child.execution_id]
