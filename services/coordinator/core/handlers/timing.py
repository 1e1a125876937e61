"""Fires timers that are due. No timer fires early, and none fires twice: each firing makes its timer stale."""

from typing import assert_never

from services.coordinator.core.commands import Tick
from services.coordinator.core.controls import end_wait
from services.coordinator.core.decision import CommandRefusal
from services.coordinator.core.events import BackoffEnded, WaitKind, WaitOutcome
from services.coordinator.core.handlers import deferring
from services.coordinator.core.handlers.circuits import give_up
from services.coordinator.core.handlers.stopping import order_timeout
from services.coordinator.core.state import CircuitHold, Run, Timer, TimerKind, Wait, Work
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import NODE_TIMEOUT, SECOND, Error, ErrorClass


def tick(turn: Turn, command: Tick) -> CommandRefusal | None:
    execution = turn.execution
    while (timer := execution.next_timer()) is not None and timer.due <= turn.now:
        _fire(turn, timer, command.random)
    return None


def _fire(turn: Turn, timer: Timer, random: float) -> None:
    subject = timer.subject
    match timer.kind:
        case TimerKind.BACKOFF:
            assert isinstance(subject, Work)
            turn.emit(BackoffEnded(turn.now, subject.key))
        case TimerKind.WAIT:
            assert isinstance(subject, Wait)
            if subject.kind is WaitKind.OUTSIDE:
                deferring.time_out(turn, subject.work, random)
            else:
                end_wait(turn, subject.work, WaitOutcome.EXPIRED)
        case TimerKind.BACKSTOP:
            assert isinstance(subject, Run)
            _time_out(turn, subject, random)
        case TimerKind.DEADLINE:
            order_timeout(turn)
        case TimerKind.ANSWER:
            for run in list(turn.execution.live.values()):
                turn.cancel_run(run.work)
        case TimerKind.GIVE_UP:
            assert isinstance(subject, CircuitHold)
            give_up(turn, subject)
        case _:
            assert_never(timer.kind)


def _time_out(turn: Turn, run: Run, random: float) -> None:
    message = f"not done {run.work.node.timeout / SECOND:g} s after it began, and its runner does not say why"
    error = Error(ErrorClass.TIMEOUT, NODE_TIMEOUT, message)
    turn.fail_run(run.work, turn.report_of(run), error, random=random, is_reported=False)
