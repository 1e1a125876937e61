"""Bookkeeping of waits."""

from typing import assert_never

from services.coordinator.core import events as ev
from services.coordinator.core.fold.answers import remember
from services.coordinator.core.fold.runs import run_of
from services.coordinator.core.fold.timers import set_timer
from services.coordinator.core.state import Execution, Run, TimerKind, Wait, WorkState
from services.coordinator.core.values import ApprovalState, RunState


def wait_started(execution: Execution, event: ev.WaitStarted) -> None:
    run = run_of(execution, event)
    _wait(execution, run, event.kind, event.due_time, event.name)


def apply_outside(execution: Execution, event: ev.RunDeferred | ev.OutsideAnswered) -> None:
    match event:
        case ev.RunDeferred():
            _run_deferred(execution, event)
        case ev.OutsideAnswered():
            _outside_answered(execution, event)
        case _:
            assert_never(event)


def _run_deferred(execution: Execution, event: ev.RunDeferred) -> None:
    run = execution.live.pop(event.run)
    # The timer that was set for its runner is void.
    run.timer = 0
    run.is_answered = True
    run.state = RunState.RUNNING
    run.start_time = event.start_time
    run.inputs_hash = event.inputs_hash
    run.config_hash = event.config_hash
    # The event that ends the run adds them to those of the execution.
    run.cost_tokens = event.cost_tokens
    _wait(execution, run, ev.WaitKind.OUTSIDE, event.due_time)


def _wait(execution: Execution, run: Run, kind: ev.WaitKind, due: int, name: str = "") -> None:
    work = run.work
    work.state = WorkState.WAITING
    wait = execution.waits[work.key] = Wait(work, kind, due, name=name)
    if due:
        wait.timer = set_timer(execution, due, TimerKind.WAIT, wait)


def wait_ended(execution: Execution, event: ev.WaitEnded) -> None:
    wait = execution.waits.pop(event.key)
    _end(execution, wait)
    if wait.kind is ev.WaitKind.APPROVAL and event.outcome is ev.WaitOutcome.EXPIRED:
        execution.approvals[event.run].state = ApprovalState.EXPIRED


def _outside_answered(execution: Execution, event: ev.OutsideAnswered) -> None:
    remember(execution, event.message_id)
    # Without a wait, the answer was faster than the runner, which still has the run.
    if wait := execution.waits.pop(event.key, None):
        _end(execution, wait)


def _end(execution: Execution, wait: Wait) -> None:
    wait.timer = 0
    wait.work.state = WorkState.BEGUN
    if wait.child is not None:
        # Its end came before the answer to its start, or its start was refused.
        execution.unstarted.pop(wait.child.execution_id, None)
        del execution.children[wait.child.execution_id]
