"""Every rule of an execution: a command in, events or a refusal out, nothing changed.

One file per family of commands:

    starting    Start, Adopt                     leasing    Assign, Release, LoseRunner
    reporting   what runners say of their runs   stopping   Cancel
    timing      Tick                             plan       what follows from an outcome
                                                 telling    what runners say, within bounds

Hazards: `now` is read once by the caller and given to one decision. Between a decision and the folding of its events no
other decision may be asked for.
"""

from typing import assert_never

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
from services.coordinator.core.decide.leasing import assign, lose_runner, release
from services.coordinator.core.decide.reporting import (
    report_failure,
    report_progress,
    report_started,
    report_stopped,
    report_success,
)
from services.coordinator.core.decide.starting import adopt, start
from services.coordinator.core.decide.stopping import cancel
from services.coordinator.core.decide.timing import tick
from services.coordinator.core.decision import Decision, RefusalReason, refuse
from services.coordinator.core.state import Execution
from services.coordinator.core.values import Instant


def decide(execution: Execution, command: Command, now: Instant) -> Decision:
    if execution.seq == 0 and not isinstance(command, Start):
        return refuse(RefusalReason.NOT_STARTED, "the execution has not started")
    match command:
        case ReportSuccess():
            return report_success(execution, command, now)
        case Assign():
            return assign(execution, command, now)
        case Start():
            return start(execution, command, now)
        case ReportFailure():
            return report_failure(execution, command, now)
        case Tick():
            return tick(execution, command, now)
        case ReportStarted():
            return report_started(execution, command, now)
        case ReportProgress():
            return report_progress(execution, command, now)
        case ReportStopped():
            return report_stopped(execution, command, now)
        case Release():
            return release(execution, command, now)
        case LoseRunner():
            return lose_runner(execution, command, now)
        case Cancel():
            return cancel(execution, command, now)
        case Adopt():
            return adopt(execution, command, now)
        case _:
            assert_never(command)
