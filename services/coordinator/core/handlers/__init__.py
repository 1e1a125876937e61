"""The handlers of the commands, one file per family.

    starting    Start, Adopt                     leasing    Assign, Release, LoseRunner
    reporting   what runners say of their runs   stopping   Cancel
    timing      Tick                             clamping   what runners say, brought within bounds

A handler checks the command and returns a refusal before it emits anything, or emits events and returns None.
"""

from typing import assert_never

from services.coordinator.core import commands
from services.coordinator.core.advance import advance
from services.coordinator.core.decision import Decision, Refusal, RefusalReason
from services.coordinator.core.handlers import leasing, reporting, starting, stopping, timing
from services.coordinator.core.state import Execution
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import Instant


def handle(execution: Execution, command: commands.Command, now: Instant) -> Decision:
    """The events that follow from the command. They are applied to `execution` when this returns."""
    if execution.seq == 0 and not isinstance(command, commands.Start):
        return Decision([], Refusal(RefusalReason.NOT_STARTED, "the execution has not started"))
    turn = Turn(execution, now)
    refusal = _dispatch(turn, command)
    if turn.events:
        advance(turn)
    return Decision(turn.events, refusal)


def _dispatch(turn: Turn, command: commands.Command) -> Refusal | None:
    match command:
        case commands.ReportSuccess():
            return reporting.report_success(turn, command)
        case commands.Assign():
            return leasing.assign(turn, command)
        case commands.Start():
            return starting.start(turn, command)
        case commands.ReportFailure():
            return reporting.report_failure(turn, command)
        case commands.Tick():
            return timing.tick(turn, command)
        case commands.ReportStarted():
            return reporting.report_started(turn, command)
        case commands.ReportProgress():
            return reporting.report_progress(turn, command)
        case commands.ReportStopped():
            return reporting.report_stopped(turn, command)
        case commands.Release():
            return leasing.release(turn, command)
        case commands.LoseRunner():
            return leasing.lose_runner(turn, command)
        case commands.Cancel():
            return stopping.cancel(turn, command)
        case commands.Adopt():
            return starting.adopt(turn, command)
        case _:
            assert_never(command)
