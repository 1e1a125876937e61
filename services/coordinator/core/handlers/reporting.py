"""Reports of runners about their runs: a run began, goes on, succeeded, failed or stopped.

`of_live_run` (late_reports.py) keeps the reports that do not count away from these handlers.
"""

from services.coordinator.core import commands, results
from services.coordinator.core import events as ev
from services.coordinator.core.late_reports import of_live_run
from services.coordinator.core.retry import BACKSTOP_MARGIN
from services.coordinator.core.state import Run
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import INLINE_BYTES_MAX, Error, ErrorClass, Instant, OutputRef, RunState


@of_live_run
def report_success(turn: Turn, run: Run, report: commands.ReportSuccess) -> None:
    now, work = turn.now, run.work
    if work.node.is_control:
        _go_on_rendered(turn, run, report)
        return
    if run.is_rendering:
        _make_ready_rendered(turn, run, report)
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
        if run.work.node.has_control_inputs:
            message = f"the config and the inputs have over {INLINE_BYTES_MAX} bytes"
            turn.fail_run(run.work, report, Error(ErrorClass.PERMANENT, "INVALID_CONFIG", message))
        else:
            turn.emit(ev.ControlRendered(turn.now, key, run.number, b"", *times, report.output))
    elif run.work.node.has_control_inputs and not results.is_rendering(report.output):
        error = Error(ErrorClass.PERMANENT, "INVALID_CONFIG", "the renderer returned no config and inputs")
        turn.fail_run(run.work, report, error)
    else:
        turn.emit(ev.ControlRendered(turn.now, key, run.number, report.output, *times))


def _make_ready_rendered(turn: Turn, run: Run, report: commands.ReportSuccess) -> None:
    """Inputs and config came back from their renderer. A runner that does not render is given them."""
    key, times = run.work.key, _times(report, turn.now)
    if turn.execution.stop is not None:
        turn.emit(ev.RunCancelled(turn.now, key, run.number, *times, True))
    elif not results.is_rendering(report.output):
        error = Error(ErrorClass.PERMANENT, "INVALID_CONFIG", "the renderer returned no config and inputs")
        turn.fail_run(run.work, report, error)
    else:
        turn.emit(ev.WorkRendered(turn.now, key, run.number, report.output, *times, ev.Consequences(ready=(key,))))


def _times(report: commands.ReportOfEnd, now: Instant) -> tuple[Instant, Instant]:
    return results.clamp_time(report.start_time, now), results.clamp_time(report.end_time, now)


@of_live_run
def report_failure(turn: Turn, run: Run, report: commands.ReportFailure) -> None:
    turn.keep_cursor(run, report.cursor)
    turn.fail_run(
        run.work, report, report.error, random=report.random, retry_after=report.retry_after, rendered=report.rendered
    )


@of_live_run
def report_started(turn: Turn, run: Run, report: commands.ReportStarted) -> None:
    if run.state is not RunState.RUNNING:
        timeout = 0 if run.is_rendering else run.work.node.timeout
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
