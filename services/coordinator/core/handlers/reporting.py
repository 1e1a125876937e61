"""Reports of runners about their runs: a run began, goes on, succeeded, failed or stopped.

A report counts if it names a live run and the epoch of its lease, and comes from the instance that was granted the run.
The same report again gets the first answer. A report on somebody else's run is refused and not recorded. Any other
report is late: its run was lost, taken back, timed out or ended with the execution, and may be running elsewhere by
now. A late report is refused, and the refusal is recorded once per run.
"""

from collections.abc import Callable
from typing import TypeVar

from services.coordinator.core import commands, results
from services.coordinator.core import events as ev
from services.coordinator.core.decision import Refusal, RefusalReason
from services.coordinator.core.retry import BACKSTOP_MARGIN
from services.coordinator.core.state import Run
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import INLINE_BYTES_MAX, Error, ErrorClass, Instant, OutputRef, RunState

_Report = TypeVar("_Report", bound=commands.Report)


def live_run(turn: Turn, report: commands.Report) -> Run | Refusal | None:
    """The run that the reporter has; None if the same report was accepted before."""
    execution = turn.execution
    run = execution.live.get(report.run)
    if run is not None and run.epoch == report.epoch and report.instance_id in ("", run.instance_id):
        return run
    if not 0 < report.run <= len(execution.runs):
        return Refusal(RefusalReason.LEASE_UNKNOWN, f"there is no run {report.run}")
    run = execution.runs[report.run - 1]
    if report.instance_id not in ("", run.instance_id):
        return Refusal(RefusalReason.LEASE_UNKNOWN, f"run {report.run} is another's")
    if run.is_answered and run.epoch == report.epoch:
        return None
    message = f"run {report.run} is {run.state} and no longer held under epoch {report.epoch}"
    if not execution.is_final and not run.is_late_noted:
        kind = type(report).__name__
        turn.emit(ev.LateReportRejected(turn.now, run.work.key, report.run, report.epoch, kind))
    return Refusal(RefusalReason.LATE_REPORT, message)


def of_live_run(handler: Callable[[Turn, Run, _Report], None]) -> Callable[[Turn, _Report], Refusal | None]:
    """Gives the handler the run of each report that counts. It never sees another one."""

    def handle(turn: Turn, report: _Report) -> Refusal | None:
        run = live_run(turn, report)
        if not isinstance(run, Run):
            return run
        handler(turn, run, report)
        return None

    return handle


@of_live_run
def report_success(turn: Turn, run: Run, report: commands.ReportSuccess) -> None:
    now, work = turn.now, run.work
    if work.node.is_control:
        _go_on_rendered(turn, run, report)
        return
    branch = results.clean_text(report.branch)
    turn.emit(
        ev.RunSucceeded(
            now,
            work.key,
            run.number,
            report.output,
            branch,
            results.clamp_time(report.start_time, now),
            results.clamp_time(report.end_time, now),
            report.inputs_hash[: results.HASH_BYTES],
            report.config_hash[: results.HASH_BYTES],
            results.clamp_cost(report.cost_tokens),
            turn.after_success(work, branch),
        )
    )


def _go_on_rendered(turn: Turn, run: Run, report: commands.ReportSuccess) -> None:
    """The config of a control node came back from its renderer."""
    key, times = run.work.key, _times(report, turn.now)
    if turn.execution.stop is not None:
        turn.emit(ev.RunCancelled(turn.now, key, run.number, *times, True))
    elif isinstance(report.output, OutputRef):
        error = Error(ErrorClass.PERMANENT, "INVALID_CONFIG", f"the config has over {INLINE_BYTES_MAX} bytes")
        turn.fail_run(run.work, report, error)
    else:
        turn.emit(ev.ControlRendered(turn.now, key, run.number, report.output, *times))


def _times(report: commands.ReportOfEnd, now: Instant) -> tuple[Instant, Instant]:
    return results.clamp_time(report.start_time, now), results.clamp_time(report.end_time, now)


@of_live_run
def report_failure(turn: Turn, run: Run, report: commands.ReportFailure) -> None:
    turn.fail_run(run.work, report, report.error, random=report.random, retry_after=report.retry_after)


@of_live_run
def report_started(turn: Turn, run: Run, report: commands.ReportStarted) -> None:
    if run.state is not RunState.RUNNING:
        timeout = run.work.node.timeout
        backstop = turn.now + timeout + BACKSTOP_MARGIN if timeout else 0
        start_time = results.clamp_time(report.start_time, turn.now)
        turn.emit(ev.RunStarted(turn.now, run.work.key, run.number, start_time, backstop))


@of_live_run
def report_progress(turn: Turn, run: Run, report: commands.ReportProgress) -> None:
    # Progress without a cursor leaves the last cursor: the next attempt goes on from it.
    cursor = report.cursor or run.work.cursor
    news = (results.clamp_fraction(report.progress), results.clean_text(report.message), cursor)
    if news != (run.progress, run.progress_message, run.work.cursor):
        turn.emit(ev.RunProgressed(turn.now, run.work.key, run.number, *news))


@of_live_run
def report_stopped(turn: Turn, run: Run, report: commands.ReportStopped) -> None:
    if turn.execution.stop is not None:
        turn.emit(ev.RunCancelled(turn.now, run.work.key, run.number, *_times(report, turn.now), True))
        return
    # Nobody told the runner to stop, so the work is still wanted. It is tried again like after any failure.
    error = Error(ErrorClass.TRANSIENT, "STOPPED", "the runner stopped it unasked")
    turn.fail_run(run.work, report, error, random=1.0)
