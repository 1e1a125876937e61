"""Reports of runners about their runs: a run began, goes on, succeeded, failed or stopped.

A report counts if it names a live run and the epoch of its lease, and comes from the instance that was granted the run.
The same report again gets the first answer. A report on somebody else's run is refused and not recorded. Any other
report is late: its run was lost, taken back, timed out or ended with the execution, and may be running elsewhere by
now. A late report is refused, and the refusal is recorded once per run.
"""

from services.coordinator.core.commands import (
    Release,
    ReportFailure,
    ReportProgress,
    ReportStarted,
    ReportStopped,
    ReportSuccess,
)
from services.coordinator.core.decision import Refusal, RefusalReason
from services.coordinator.core.events import (
    NOTHING_FOLLOWS,
    ControlRendered,
    LateReportRejected,
    RunCancelled,
    RunFailed,
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
from services.coordinator.core.state import Run
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import (
    INLINE_BYTES_MAX,
    Error,
    ErrorClass,
    FailureReason,
    Instant,
    OutputRef,
    RunState,
    fingerprint,
)

Report = ReportSuccess | ReportFailure | ReportStarted | ReportProgress | ReportStopped | Release


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
    if isinstance(report.output, bytes) and len(report.output) > INLINE_BYTES_MAX:
        # A runner keeps an output of this size outside. Inline, every reader of the journal would carry it.
        error = Error(ErrorClass.PERMANENT, "OUTPUT_TOO_LARGE", f"{len(report.output)} bytes inline")
        fail_run(turn, run, _as_failure(report, error), is_reported=True)
    elif run.work.node.is_control:
        _go_on_rendered(turn, run, report)
    else:
        _succeed(turn, run, report)
    return None


def _succeed(turn: Turn, run: Run, report: ReportSuccess) -> None:
    now, work, branch = turn.now, run.work, clean_text(report.branch)
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


def _go_on_rendered(turn: Turn, run: Run, report: ReportSuccess) -> None:
    """The config of a control node came back from its renderer."""
    times = _times(report, turn.now)
    key = run.work.key
    if turn.execution.stop is not None:
        turn.emit(RunCancelled(turn.now, key, run.number, *times, True))
    elif isinstance(report.output, OutputRef):
        error = Error(ErrorClass.PERMANENT, "INVALID_CONFIG", f"the config has over {INLINE_BYTES_MAX} bytes")
        fail_run(turn, run, _as_failure(report, error), is_reported=True)
    else:
        turn.emit(ControlRendered(turn.now, key, run.number, report.output, *times))


def _times(report: ReportSuccess | ReportFailure | ReportStopped, now: Instant) -> tuple[Instant, Instant]:
    return clamp_time(report.start_time, now), clamp_time(report.end_time, now)


def _as_failure(report: ReportSuccess, error: Error) -> ReportFailure:
    return ReportFailure(
        report.run, report.epoch, error, 0.0, 0, report.start_time, report.end_time, report.inputs_hash,
        report.config_hash, report.cost_tokens,
    )  # fmt: skip


def report_failure(turn: Turn, report: ReportFailure) -> Refusal | None:
    run = live_run(turn, report)
    if not isinstance(run, Run):
        return run
    fail_run(turn, run, report, is_reported=True)
    return None


def fail_run(turn: Turn, run: Run, report: ReportFailure, *, is_reported: bool) -> None:
    work, error = run.work, clean_error(report.error)
    start_time, end_time = _times(report, turn.now)
    verdict = _judge(turn, run, report)
    reason = verdict if isinstance(verdict, FailureReason) else None
    turn.emit(
        RunFailed(
            time=turn.now,
            key=work.key,
            run=run.number,
            error=error,
            fingerprint=fingerprint(work.node.module, error),
            start_time=start_time,
            end_time=end_time,
            inputs_hash=report.inputs_hash[:HASH_BYTES],
            config_hash=report.config_hash[:HASH_BYTES],
            cost_tokens=clamp_cost(report.cost_tokens),
            is_charged=_is_charged(error),
            retry_time=0 if isinstance(verdict, FailureReason) else verdict,
            reason=reason,
            is_handled=work.node.is_failure_handled,
            is_reported=is_reported,
            then=NOTHING_FOLLOWS if reason is None else turn.after_failure(work, reason),
        )
    )
    turn.stop_if_fail_fast()


def _judge(turn: Turn, run: Run, report: ReportFailure) -> Instant | FailureReason:
    """When the work is tried again, or why it is not."""
    if turn.execution.stop is not None:
        return FailureReason.STOPPED
    work = run.work
    return judge_failure(
        work.node.retry.over(turn.execution.retry),
        report.error.error_class,
        work.failures + _is_charged(report.error),
        first_time=work.first_time,
        now=turn.now,
        retry_after=report.retry_after,
        random=report.random,
    )


def _is_charged(error: Error) -> bool:
    """An open circuit means that the target was not even asked."""
    return error.error_class is not ErrorClass.CIRCUIT_OPEN


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
    failure = ReportFailure(
        report.run, report.epoch, error, 1.0, start_time=report.start_time, end_time=report.end_time
    )
    fail_run(turn, run, failure, is_reported=True)
    return None
