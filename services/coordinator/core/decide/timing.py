"""What the passing of time leads to. Never early, and never twice: what is due is read off the state."""

from typing import assert_never

from services.coordinator.core.commands import ReportFailure, Tick
from services.coordinator.core.decide.plan import Plan
from services.coordinator.core.decide.reporting import add_failure
from services.coordinator.core.decide.stopping import order_timeout
from services.coordinator.core.decision import Decision, nothing_new
from services.coordinator.core.events import BackoffEnded, RunCancelled, SleepEnded
from services.coordinator.core.evolve import EMPTY_OUTPUT
from services.coordinator.core.state import Execution, Run, Timer, TimerKind, Work, due_timers
from services.coordinator.core.values import SECOND, Error, ErrorClass, Instant


def tick(execution: Execution, command: Tick, now: Instant) -> Decision:
    plan = Plan(execution, now)
    for timer in due_timers(execution, now):
        if plan.stop is None or timer.kind is TimerKind.ANSWER:
            _fire(plan, timer, command.random)
    return plan.conclude() if plan.events else nothing_new()


def _fire(plan: Plan, timer: Timer, random: float) -> None:
    subject = timer.subject
    match timer.kind:
        case TimerKind.BACKOFF:
            assert isinstance(subject, Work)
            plan.add(BackoffEnded(plan.now, subject.node.id, subject.iteration, subject.generation))
        case TimerKind.SLEEP:
            assert isinstance(subject, Run)
            plan.add(SleepEnded(plan.now, subject.number))
            plan.end_held(subject.number)
            plan.succeed(subject.work.node, EMPTY_OUTPUT)
        case TimerKind.BACKSTOP:
            assert isinstance(subject, Run)
            _time_out(plan, subject, random)
        case TimerKind.DEADLINE:
            execution = plan.execution
            order_timeout(plan, execution.deadline - execution.create_time)
        case TimerKind.ANSWER:
            for run in plan.execution.live.values():
                plan.end_live()
                plan.add(RunCancelled(plan.now, run.number, 0, 0, False))
        case _:
            assert_never(timer.kind)


def _time_out(plan: Plan, run: Run, random: float) -> None:
    message = f"not done {run.work.node.timeout / SECOND:g} s after it began, and its runner does not say why"
    report = ReportFailure(
        run.number,
        run.epoch,
        Error(ErrorClass.TIMEOUT, "TIMEOUT", message),
        random,
        start_time=run.start_time,
        end_time=plan.now,
    )
    add_failure(plan, run, report, is_reported=False)
