"""What runners say of their runs: it began, it goes on, it is done, it failed, it stopped.

A report counts if it names a live run and the epoch of its lease, and comes from the instance that was granted it. The
same report again is answered as the first time. Of another's run nothing is said and nothing recorded. Anything else
is late: its run was lost, taken back, timed out, or ended with the execution, and may be running elsewhere by now.
It is refused, and recorded once.
"""

import json
from typing import assert_never

from services.coordinator.core.commands import (
    Release,
    ReportFailure,
    ReportProgress,
    ReportStarted,
    ReportStopped,
    ReportSuccess,
)
from services.coordinator.core.compiling import read_sleep
from services.coordinator.core.decide.plan import Plan
from services.coordinator.core.decide.telling import (
    HASH_BYTES,
    told_cost,
    told_error,
    told_fraction,
    told_text,
    told_time,
)
from services.coordinator.core.decision import Decision, Refusal, RefusalReason, nothing_new, refuse
from services.coordinator.core.definition import Control
from services.coordinator.core.events import (
    ControlRendered,
    LateReportRejected,
    RunCancelled,
    RunFailed,
    RunProgressed,
    RunStarted,
    RunSucceeded,
)
from services.coordinator.core.retry import judge_failure
from services.coordinator.core.state import Execution, Run
from services.coordinator.core.values import (
    INLINE_BYTES_MAX,
    BrokenInvariant,
    Error,
    ErrorClass,
    FailureReason,
    Instant,
    OutputRef,
    RunState,
    fingerprint,
)

Report = ReportSuccess | ReportFailure | ReportStarted | ReportProgress | ReportStopped | Release


def live_run(execution: Execution, report: Report, now: Instant) -> Run | Decision:
    """The run that the reporter has, or the answer to one who has none."""
    run = execution.live.get(report.number)
    if run is not None and run.epoch == report.epoch and report.instance_id in ("", run.instance_id):
        return run
    if not 0 < report.number <= len(execution.runs):
        return refuse(RefusalReason.LEASE_UNKNOWN, f"there is no run {report.number}")
    run = execution.runs[report.number - 1]
    if report.instance_id not in ("", run.instance_id):
        return refuse(RefusalReason.LEASE_UNKNOWN, f"run {report.number} is another's")
    if run.is_answered and run.epoch == report.epoch:
        return nothing_new()
    refusal = Refusal(
        RefusalReason.LATE_REPORT,
        f"run {report.number} is {run.state} and no longer held under epoch {report.epoch}",
    )
    if execution.is_final or run.is_late_noted:
        return Decision([], refusal)
    return Decision([LateReportRejected(now, report.number, report.epoch, type(report).__name__)], refusal)


def report_success(execution: Execution, report: ReportSuccess, now: Instant) -> Decision:
    run = live_run(execution, report, now)
    if isinstance(run, Decision):
        return run
    plan = Plan(execution, now)
    if isinstance(report.output, bytes) and len(report.output) > INLINE_BYTES_MAX:
        # A runner keeps such a one outside; this one would have every reader of the journal carry it.
        error = Error(ErrorClass.PERMANENT, "OUTPUT_TOO_LARGE", f"{len(report.output)} bytes inline")
        add_failure(plan, run, _as_failure(report, error), is_reported=True)
        return plan.conclude()
    if run.work.node.control is not None:
        _go_on_rendered(plan, run, report)
        return plan.conclude()
    branch = told_text(report.branch)
    plan.events.append(
        RunSucceeded(
            now,
            report.number,
            report.output,
            branch,
            told_time(report.start_time, now),
            told_time(report.end_time, now),
            report.inputs_hash[:HASH_BYTES],
            report.config_hash[:HASH_BYTES],
            told_cost(report.cost_tokens),
        )
    )
    plan.end_live()
    plan.succeed(run.work.node, report.output, branch)
    return plan.conclude()


def _go_on_rendered(plan: Plan, run: Run, report: ReportSuccess) -> None:
    """A control node's config came back from its renderer."""
    control, work, output, now = run.work.node.control, run.work, report.output, plan.now
    if plan.stop is not None:
        plan.end_live()
        plan.add(RunCancelled(now, run.number, *_times(report, now), True))
        return
    match control:
        case Control.SLEEP:
            config = b"null" if isinstance(output, OutputRef) else output
            try:
                sleep = read_sleep(json.loads(config))
            except ValueError as fault:
                error = Error(ErrorClass.PERMANENT, "INVALID_CONFIG", str(fault))
                add_failure(plan, run, _as_failure(report, error), is_reported=True)
                return
            plan.end_live()
            plan.add(ControlRendered(now, run.number, config, *_times(report, now)))
            plan.hold(run.number, work.node, sleep.until or now + sleep.span, work)
        case Control.JOIN | None:
            raise BrokenInvariant(f"{work.node.id} has nothing to render")
        case _:
            assert_never(control)


def _times(report: ReportSuccess | ReportFailure | ReportStopped, now: Instant) -> tuple[Instant, Instant]:
    return told_time(report.start_time, now), told_time(report.end_time, now)


def _as_failure(report: ReportSuccess, error: Error) -> ReportFailure:
    return ReportFailure(
        report.number, report.epoch, error, 0.0, 0, report.start_time, report.end_time, report.inputs_hash,
        report.config_hash, report.cost_tokens,
    )  # fmt: skip


def report_failure(execution: Execution, report: ReportFailure, now: Instant) -> Decision:
    run = live_run(execution, report, now)
    if isinstance(run, Decision):
        return run
    plan = Plan(execution, now)
    add_failure(plan, run, report, is_reported=True)
    return plan.conclude()


def add_failure(plan: Plan, run: Run, report: ReportFailure, *, is_reported: bool) -> None:
    work, error = run.work, told_error(report.error)
    start_time, end_time = _times(report, plan.now)
    verdict = _judge(plan, run, report)
    reason = verdict if isinstance(verdict, FailureReason) else None
    plan.end_live()
    plan.add(
        RunFailed(
            time=plan.now,
            number=run.number,
            error=error,
            fingerprint=fingerprint(work.node.module, error),
            start_time=start_time,
            end_time=end_time,
            inputs_hash=report.inputs_hash[:HASH_BYTES],
            config_hash=report.config_hash[:HASH_BYTES],
            cost_tokens=told_cost(report.cost_tokens),
            retry_time=0 if isinstance(verdict, FailureReason) else verdict,
            reason=reason,
            is_reported=is_reported,
        )
    )
    if reason is None:
        plan.going += 1
    elif reason is not FailureReason.STOPPED:
        plan.fail(work, error)


def _judge(plan: Plan, run: Run, report: ReportFailure) -> Instant | FailureReason:
    if plan.stop is not None:
        return FailureReason.STOPPED
    work, error_class = run.work, report.error.error_class
    return judge_failure(
        work.node.retry.over(plan.execution.retry),
        error_class,
        work.failures + (error_class is not ErrorClass.CIRCUIT_OPEN),
        first_time=work.first_time,
        now=plan.now,
        retry_after=report.retry_after,
        random=report.random,
    )


def report_started(execution: Execution, report: ReportStarted, now: Instant) -> Decision:
    run = live_run(execution, report, now)
    if isinstance(run, Decision):
        return run
    if run.state is RunState.RUNNING:
        return nothing_new()
    return Decision([RunStarted(now, run.number, told_time(report.start_time, now))])


def report_progress(execution: Execution, report: ReportProgress, now: Instant) -> Decision:
    run = live_run(execution, report, now)
    if isinstance(run, Decision):
        return run
    # Progress told without a cursor leaves the last one: the next attempt goes on from it.
    cursor = report.cursor or run.work.cursor
    news = (told_fraction(report.progress), told_text(report.message), cursor)
    if news == (run.progress, run.progress_message, run.work.cursor):
        return nothing_new()
    return Decision([RunProgressed(now, run.number, *news)])


def report_stopped(execution: Execution, report: ReportStopped, now: Instant) -> Decision:
    run = live_run(execution, report, now)
    if isinstance(run, Decision):
        return run
    plan = Plan(execution, now)
    if plan.stop is None:
        # Nobody told it to: the work is still wanted. To be tried again like any failure.
        error = Error(ErrorClass.TRANSIENT, "STOPPED", "the runner stopped it unasked")
        failure = ReportFailure(
            report.number, report.epoch, error, 1.0, start_time=report.start_time, end_time=report.end_time
        )
        add_failure(plan, run, failure, is_reported=True)
    else:
        plan.end_live()
        plan.add(RunCancelled(now, run.number, *_times(report, now), True))
    return plan.conclude()
