"""Bookkeeping of work that waits for the circuit of its target."""

from services.coordinator.core import events as ev
from services.coordinator.core.fold.graph import make_ready
from services.coordinator.core.fold.runs import ended_run
from services.coordinator.core.fold.timers import set_timer
from services.coordinator.core.state import CircuitHold, Execution, TimerKind, WorkState
from services.coordinator.core.values import RunState


def work_held_back(execution: Execution, event: ev.WorkHeldBack) -> None:
    work = execution.work[event.key]
    if event.run:
        run = ended_run(execution, event)
        run.is_answered = True
        run.state = RunState.CANCELLED
        run.end_time = event.time
        work.hand_backs += 1
    elif work.state is WorkState.READY:
        del execution.ready[work]
    work.state = WorkState.HELD_BACK
    if not work.first_time:
        work.first_time = event.time
    execution.let_through.pop(event.key, None)
    hold = execution.held_back.get(event.key)
    if hold is None:
        hold = execution.held_back[event.key] = CircuitHold(work, event.target, event.until_time, event.time)
    hold.target, hold.until = event.target, event.until_time
    if event.give_up_time:
        hold.timer = set_timer(execution, event.give_up_time, TimerKind.GIVE_UP, hold)


def work_let_through(execution: Execution, event: ev.WorkLetThrough) -> None:
    hold = execution.held_back.pop(event.key)
    hold.timer = 0
    hold.is_probe = event.is_probe
    execution.let_through[event.key] = hold
    make_ready(execution, hold.work)
