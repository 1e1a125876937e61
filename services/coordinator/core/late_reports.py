"""Refuses late reports.

A report counts if it names a live run and the epoch of its lease, and comes from the instance that was granted the run.
The same report again gets the first answer. A report on somebody else's run is refused and not recorded. Any other
report is late: its run was lost, taken back, timed out or ended with the execution, and may be running elsewhere by
now. A late report is refused, and the refusal is recorded once per run.
"""

from collections.abc import Callable
from typing import TypeVar

from services.coordinator.core import commands
from services.coordinator.core import events as ev
from services.coordinator.core.decision import CommandRefusal, RefusalReason
from services.coordinator.core.state import Execution, Run
from services.coordinator.core.turn import Turn

_Report = TypeVar("_Report", bound=commands.ReportOfRun)


def live_run(turn: Turn, report: commands.ReportOfRun) -> Run | CommandRefusal | None:
    """The run that the reporter has; None if the same report was accepted before."""
    execution = turn.execution
    run = execution.live.get(report.run)
    if run is not None and run.epoch == report.epoch and report.instance_id in ("", run.instance_id):
        return run
    if not 0 < report.run <= len(execution.runs):
        return CommandRefusal(RefusalReason.LEASE_UNKNOWN, f"there is no run {report.run}")
    run = execution.runs[report.run - 1]
    if report.instance_id not in ("", run.instance_id):
        return CommandRefusal(RefusalReason.LEASE_UNKNOWN, f"run {report.run} is leased to another runner")
    if run.is_answered and run.epoch == report.epoch:
        return None
    message = f"run {report.run} is {run.state} and no longer held under epoch {report.epoch}"
    if not execution.is_final and not run.is_late_noted:
        kind = type(report).__name__
        turn.emit(ev.LateReportRejected(turn.now, run.work.key, report.run, report.epoch, kind))
    return CommandRefusal(_reason(execution, run, report), message)


def _reason(execution: Execution, run: Run, report: commands.ReportOfRun) -> RefusalReason:
    if report.epoch != run.epoch:
        return RefusalReason.EPOCH_STALE
    return RefusalReason.EXECUTION_FINAL if execution.is_final else RefusalReason.LEASE_ENDED


def of_live_run(handler: Callable[[Turn, Run, _Report], None]) -> Callable[[Turn, _Report], CommandRefusal | None]:
    """Gives the handler the run of each report that counts. It never sees another one."""

    def handle(turn: Turn, report: _Report) -> CommandRefusal | None:
        run = live_run(turn, report)
        if not isinstance(run, Run):
            return run
        handler(turn, run, report)
        return None

    return handle
