"""The handlers of the commands, one file per family.

    starting    Start, Adopt                     leasing    Assign, Release, LoseRunner
    reporting   what runners say of their runs   stopping   Cancel
    timing      Tick                             clamping   what runners say, brought within bounds

A handler checks the command and returns a refusal before it emits anything, or emits events and returns None.
"""

from typing import assert_never

from services.coordinator.core.advance import advance
from services.coordinator.core.commands import (
    Adopt,
    Assign,
    Cancel,
    Command,
    LoseRunner,
    Release,
    ReportFailure,
    ReportProgress,
    ReportStarted,
    ReportStopped,
    ReportSuccess,
    Start,
    Tick,
)
from services.coordinator.core.decision import Decision, Refusal, RefusalReason
from services.coordinator.core.handlers.leasing import assign, lose_runner, release
from services.coordinator.core.handlers.reporting import (
    report_failure,
    report_progress,
    report_started,
    report_stopped,
    report_success,
)
from services.coordinator.core.handlers.starting import adopt, start
from services.coordinator.core.handlers.stopping import cancel
from services.coordinator.core.handlers.timing import tick
from services.coordinator.core.state import Execution
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import Instant


def handle(execution: Execution, command: Command, now: Instant) -> Decision:
    """The events that follow from the command. They are applied to `execution` when this returns."""
    if execution.seq == 0 and not isinstance(command, Start):
        return Decision([], Refusal(RefusalReason.NOT_STARTED, "the execution has not started"))
    turn = Turn(execution, now)
    refusal = _dispatch(turn, command)
    if turn.events:
        advance(turn)
    return Decision(turn.events, refusal)


def _dispatch(turn: Turn, command: Command) -> Refusal | None:
    match command:
        case ReportSuccess():
            return report_success(turn, command)
        case Assign():
            return assign(turn, command)
        case Start():
            return start(turn, command)
        case ReportFailure():
            return report_failure(turn, command)
        case Tick():
            return tick(turn, command)
        case ReportStarted():
            return report_started(turn, command)
        case ReportProgress():
            return report_progress(turn, command)
        case ReportStopped():
            return report_stopped(turn, command)
        case Release():
            return release(turn, command)
        case LoseRunner():
            return lose_runner(turn, command)
        case Cancel():
            return cancel(turn, command)
        case Adopt():
            return adopt(turn, command)
        case _:
            assert_never(command)
