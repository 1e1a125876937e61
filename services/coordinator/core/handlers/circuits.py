"""Work that waits because the circuit of its target is open (circuits.py), until the circuit lets it through.

Waiting costs no attempt and no place of a runner. It is part of the journal, so a coordinator that takes over goes on
waiting, and the execution can be parked. The wait counts against the retry budget of the work.
"""

from services.coordinator.core.commands import HoldBack, LetThrough, Release, ReportHeldBack, ReportOfEnd
from services.coordinator.core.decision import CommandRefusal, RefusalReason
from services.coordinator.core.events import WorkHeldBack, WorkLetThrough
from services.coordinator.core.handlers.leasing import release
from services.coordinator.core.late_reports import live_run
from services.coordinator.core.retry import HAND_BACKS_MAX
from services.coordinator.core.state import CircuitHold, Run, Work, WorkState
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import SECOND, Error, ErrorClass, FailureReason, Instant, ReleaseReason


def report_held_back(turn: Turn, command: ReportHeldBack) -> CommandRefusal | None:
    """Counted as a hand-back, so that a runner which reports circuits that are not open costs no more than others that
    hand back what they are granted. Only a run that would call something can be held back."""
    run = live_run(turn, command)
    if not isinstance(run, Run):
        return run
    work = run.work
    calls_nothing = run.is_rendering or work.node.is_control
    if calls_nothing or turn.execution.stop is not None or work.hand_backs >= HAND_BACKS_MAX:
        refused = ReleaseReason.REFUSED
        return release(turn, Release(command.run, command.epoch, refused, instance_id=command.instance_id))
    target = f"{work.node.runner_module} {command.target}"
    _hold(turn, work, run.number, target, command.until)
    return None


def hold_back(turn: Turn, command: HoldBack) -> CommandRefusal | None:
    """Work that was given to a runner meanwhile is left alone. Work that waits already may wait for longer."""
    execution = turn.execution
    if execution.stop is not None or execution.is_final:
        return CommandRefusal(RefusalReason.EXECUTION_STOPPING, "the execution is ending")
    for held in command.works:
        hold, work = execution.held_back.get(held.key), execution.work.get(held.key)
        is_ready = work is not None and work.state is WorkState.READY
        if work is not None and (is_ready or (hold is not None and held.until > hold.until)):
            _hold(turn, work, 0, held.target, held.until)
    return None


def let_through(turn: Turn, command: LetThrough) -> CommandRefusal | None:
    """Work that does not wait any more is left alone."""
    for key in command.keys:
        if key in turn.execution.held_back:
            turn.emit(WorkLetThrough(turn.now, key, command.is_probe))
    return None


def give_up(turn: Turn, hold: CircuitHold) -> None:
    """The retry budget of the work is over."""
    work, number = hold.work, len(turn.execution.runs) + 1
    waited = (turn.now - work.first_time) / SECOND
    message = f"the circuit of {hold.target} did not let it through, and its retry budget was over after {waited:g} s"
    error = Error(ErrorClass.CIRCUIT_OPEN, "CIRCUIT_OPEN", message)
    report = ReportOfEnd(number, 0, start_time=turn.now, end_time=turn.now)
    turn.fail_run(work, report, error, reason=FailureReason.CIRCUIT_BREAKER)


def _hold(turn: Turn, work: Work, run: int, target: str, until: Instant) -> None:
    budget = work.node.retry.over(turn.execution.retry).budget
    give_up_time = (work.first_time or turn.now) + budget if budget else 0
    turn.emit(WorkHeldBack(turn.now, work.key, run, target, until, give_up_time))
