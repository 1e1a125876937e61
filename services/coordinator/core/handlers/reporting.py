"""Reports of runners about their runs: a run began, goes on, succeeded, failed or stopped.

A report counts if it names a live run and the epoch of its lease, and comes from the instance that was granted the run.
The same report again gets the first answer. A report on somebody else's run is refused and not recorded. Any other
report is late: its run was lost, taken back, timed out or ended with the execution, and may be running elsewhere by
now. A late report is refused, and the refusal is recorded once per run.
"""

from services.coordinator.core.commands import (
    Report,
    ReportFailure,
    ReportOfEnd,
    ReportProgress,
    ReportStarted,
    ReportStopped,
    ReportSuccess,
)
from services.coordinator.core.decision import Refusal, RefusalReason
from services.coordinator.core.events import (
    ControlRendered,
    LateReportRejected,
    RunCancelled,
    RunProgressed,
    RunStarted,
    RunSucceeded,
)
from services.coordinator.core.handlers.clamping import (
    HASH_BYTES,
    clamp_cost,
    clamp_fraction,
    clamp_time,
    clean_error,
    clean_text,
)
from services.coordinator.core.retry import BACKSTOP_MARGIN, judge_failure
from services.coordinator.core.state import Run, Work
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import (
    INLINE_BYTES_MAX,
    Error,
    ErrorClass,
    FailureReason,
    Instant,
    OutputRef,
    RunState,
    Span,
)


def live_run(turn: Turn, report: Report) -> Run | Refusal | None:
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
        turn.emit(LateReportRejected(turn.now, run.work.key, report.run, report.epoch, kind))
    return Refusal(RefusalReason.LATE_REPORT, message)


def report_success(turn: Turn, report: ReportSuccess) -> Refusal | None:
    run = live_run(turn, report)
    if not isinstance(run, Run):
        return run
    now, work = turn.now, run.work
    if work.node.is_control:
        _go_on_rendered(turn, run, report)
        return None
    branch = clean_text(report.branch)
    turn.emit(
        RunSucceeded(
            now,
            work.key,
            run.number,
            report.output,
            branch,
            clamp_time(report.start_time, now),
            clamp_time(report.end_time, now),
            report.inputs_hash[:HASH_BYTES],
            report.config_hash[:HASH_BYTES],
            clamp_cost(report.cost_tokens),
            turn.after_success(work, branch),
        )
    )
    return None


def _go_on_rendered(turn: Turn, run: Run, report: ReportSuccess) -> None:
    """The config of a control node came back from its renderer."""
    key, times = run.work.key, _times(report, turn.now)
    if turn.execution.stop is not None:
        turn.emit(RunCancelled(turn.now, key, run.number, *times, True))
    elif isinstance(report.output, OutputRef):
        error = Error(ErrorClass.PERMANENT, "INVALID_CONFIG", f"the config has over {INLINE_BYTES_MAX} bytes")
        fail_run(turn, run, report, error)
    else:
        turn.emit(ControlRendered(turn.now, key, run.number, report.output, *times))


def _times(report: ReportOfEnd, now: Instant) -> tuple[Instant, Instant]:
    return clamp_time(report.start_time, now), clamp_time(report.end_time, now)


def report_failure(turn: Turn, report: ReportFailure) -> Refusal | None:
    run = live_run(turn, report)
    if not isinstance(run, Run):
        return run
    fail_run(turn, run, report, report.error, random=report.random, retry_after=report.retry_after)
    return None


def fail_run(
    turn: Turn,
    run: Run,
    report: ReportOfEnd,
    error: Error,
    *,
    random: float = 0.0,
    retry_after: Span = 0,
    is_reported: bool = True,
) -> None:
    start_time, end_time = _times(report, turn.now)
    turn.fail_run(
        run.number,
        run.work,
        clean_error(error),
        _judge(turn, run.work, error, random, retry_after),
        start_time=start_time,
        end_time=end_time,
        inputs_hash=report.inputs_hash[:HASH_BYTES],
        config_hash=report.config_hash[:HASH_BYTES],
        cost_tokens=clamp_cost(report.cost_tokens),
        is_reported=is_reported,
    )


def _judge(turn: Turn, work: Work, error: Error, random: float, retry_after: Span) -> Instant | FailureReason:
    """When the work is tried again, or why it is not."""
    if turn.execution.stop is not None:
        return FailureReason.STOPPED
    return judge_failure(
        work.node.retry.over(turn.execution.retry),
        error.error_class,
        work.failures + error.is_charged,
        first_time=work.first_time,
        now=turn.now,
        retry_after=retry_after,
        random=random,
    )


def report_started(turn: Turn, report: ReportStarted) -> Refusal | None:
    run = live_run(turn, report)
    if not isinstance(run, Run):
        return run
    if run.state is not RunState.RUNNING:
        timeout = run.work.node.timeout
        backstop = turn.now + timeout + BACKSTOP_MARGIN if timeout else 0
        start_time = clamp_time(report.start_time, turn.now)
        turn.emit(RunStarted(turn.now, run.work.key, run.number, start_time, backstop))
    return None


def report_progress(turn: Turn, report: ReportProgress) -> Refusal | None:
    run = live_run(turn, report)
    if not isinstance(run, Run):
        return run
    # Progress without a cursor leaves the last cursor: the next attempt goes on from it.
    cursor = report.cursor or run.work.cursor
    news = (clamp_fraction(report.progress), clean_text(report.message), cursor)
    if news != (run.progress, run.progress_message, run.work.cursor):
        turn.emit(RunProgressed(turn.now, run.work.key, run.number, *news))
    return None


def report_stopped(turn: Turn, report: ReportStopped) -> Refusal | None:
    run = live_run(turn, report)
    if not isinstance(run, Run):
        return run
    if turn.execution.stop is not None:
        turn.emit(RunCancelled(turn.now, run.work.key, run.number, *_times(report, turn.now), True))
        return None
    # Nobody told the runner to stop, so the work is still wanted. It is tried again like after any failure.
    error = Error(ErrorClass.TRANSIENT, "STOPPED", "the runner stopped it unasked")
    fail_run(turn, run, report, error, random=1.0)
    return None
