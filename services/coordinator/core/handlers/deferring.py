"""Work that somebody else finishes. Its module has handed out the completion token of the run and returned.

    LIVE ──report of the runner──► WAITING ──CompleteRun, FailRun, or the node's timeout──► as after any other attempt

The answer may be faster than the runner's report, and counts all the same: the report is then a repeat. Whatever else
ends the run makes its token void, and the next attempt has another one. A heartbeat shows that somebody is at work; the
timeout of the node goes on.
"""

from services.coordinator.core import commands, results
from services.coordinator.core import events as ev
from services.coordinator.core.answers import answered_once
from services.coordinator.core.decision import CommandRefusal, RefusalReason
from services.coordinator.core.late_reports import of_live_run
from services.coordinator.core.state import Execution, Run, Work
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import NODE_TIMEOUT, SECOND, Error, ErrorClass


@of_live_run
def report_deferred(turn: Turn, run: Run, report: commands.ReportDeferred) -> None:
    work = run.work
    start_time = results.clamp_time(report.start_time, turn.now)
    if work.node.is_control or run.is_rendering:
        error = Error(ErrorClass.PERMANENT, "INVALID_CONFIG", "a run that only renders cannot be deferred")
        turn.fail_run(work, report, error)
    elif turn.execution.stop is not None:
        end_time = results.clamp_time(report.end_time, turn.now)
        turn.emit(ev.RunCancelled(turn.now, work.key, run.number, start_time, end_time, True))
    else:
        turn.emit(
            ev.RunDeferred(
                turn.now,
                work.key,
                run.number,
                start_time,
                run.create_time + work.node.timeout if work.node.timeout else 0,
                report.inputs_hash[: results.HASH_BYTES],
                report.config_hash[: results.HASH_BYTES],
                results.clamp_cost(report.cost_tokens),
            )
        )


@answered_once
def complete(turn: Turn, command: commands.CompleteRun) -> CommandRefusal | None:
    run = _open_run(turn.execution, command.run)
    if run is None:
        return _void(command)
    work, branch = run.work, results.clean_text(command.branch)
    turn.emit(ev.OutsideAnswered(turn.now, work.key, run.number, command.message_id))
    turn.emit(
        ev.RunSucceeded(
            turn.now,
            work.key,
            run.number,
            command.output,
            branch,
            run.start_time,
            turn.now,
            run.inputs_hash,
            run.config_hash,
            run.cost_tokens,
            turn.after_success(work, branch),
        )
    )
    return None


@answered_once
def fail(turn: Turn, command: commands.FailRun) -> CommandRefusal | None:
    run = _open_run(turn.execution, command.run)
    if run is None:
        return _void(command)
    turn.emit(ev.OutsideAnswered(turn.now, run.work.key, run.number, command.message_id))
    turn.fail_run(run.work, turn.report_of(run), command.error, random=command.random)
    return None


def heartbeat(turn: Turn, command: commands.HeartbeatRun) -> CommandRefusal | None:
    run = _open_run(turn.execution, command.run)
    if run is None:
        return _void(command)
    progress = run.progress if command.progress is None else results.clamp_fraction(command.progress)
    message = run.progress_message if command.message is None else results.clean_text(command.message)
    turn.emit(ev.RunProgressed(turn.now, run.work.key, run.number, progress, message, run.work.cursor))
    return None


def time_out(turn: Turn, work: Work, random: float) -> None:
    """The timeout of the node is over, and nobody has answered."""
    run = work.run
    assert run is not None
    turn.emit(ev.WaitEnded(turn.now, work.key, run.number, ev.WaitOutcome.EXPIRED))
    message = f"not done {work.node.timeout / SECOND:g} s after it was granted, and nobody has said how it ended"
    turn.fail_run(work, turn.report_of(run), Error(ErrorClass.TIMEOUT, NODE_TIMEOUT, message), random=random)


def _open_run(execution: Execution, number: int) -> Run | None:
    """The run that the token names, if it is not over."""
    if number in execution.live:
        run = execution.live[number]
        return None if run.is_rendering or run.work.node.is_control else run
    for wait in execution.waits.values():
        if wait.kind is ev.WaitKind.OUTSIDE and wait.work.run is not None and wait.work.run.number == number:
            return wait.work.run
    return None


def _void(command: commands.OutsideCommand) -> CommandRefusal:
    return CommandRefusal(RefusalReason.RUN_ENDED, f"run {command.run} is over, so its completion token is void")
