"""Runs given to runners, and runs that come back from them without an outcome.

The death of a runner costs the work one of its deaths. A run that is handed back keeps its runner from the work for a
while. Neither costs an attempt of the retry policy, unless the work is handed back without end.

Deaths are counted by instance, so an instance that is lost with the same work twice counts once. When a runner has
died with several runs, those that had begun are the likely cause. A run that had not begun, as far as its runner has
said, is spared. That happens once for each piece of work, because work may end its runner before the runner says that
it has begun. The same holds for runs that only render for another runner. Their deaths are no deaths of the work: once
it is rendered, the count begins anew.
"""

from services.coordinator.core.commands import Assign, AssignedRun, LoseRunner, Release, ReportOfEnd
from services.coordinator.core.decision import CommandRefusal, RefusalReason
from services.coordinator.core.events import NOTHING_FOLLOWS, Consequences, RunLeased, RunLost, RunReleased
from services.coordinator.core.inputs import InputsFault, inputs_fault
from services.coordinator.core.late_reports import live_run
from services.coordinator.core.retry import (
    BACKSTOP_MARGIN,
    DEATHS_MAX,
    HAND_BACKS_MAX,
    death_error,
    hand_back_delay,
    hand_back_error,
)
from services.coordinator.core.state import Run, Work
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import Error, FailureReason, ReleaseReason, RunState, fingerprint


def assign(turn: Turn, command: Assign) -> CommandRefusal | None:
    """All grants or none: work that is not ready means that the caller looked at another state. Work that no runner can
    be given, because of its inputs, gets its run too, and fails with it."""
    execution = turn.execution
    if execution.is_final:
        return CommandRefusal(RefusalReason.EXECUTION_FINAL, "the execution is final")
    if execution.stop is not None:
        return CommandRefusal(RefusalReason.EXECUTION_STOPPING, "the execution is ending")
    if execution.paused_by is not None:
        return CommandRefusal(RefusalReason.EXECUTION_PAUSED, "the execution is paused")
    works = [grant.work for grant in command.grants]
    for work in works:
        if work not in execution.ready:
            return CommandRefusal(RefusalReason.NOT_READY, f"{work.node.id} is not ready")
    if len(works) > 1 and len(set(works)) < len(works):
        return CommandRefusal(RefusalReason.NOT_READY, "the same work twice")
    faults: list[tuple[Work, InputsFault]] = []
    for grant in command.grants:
        fault = _lease(turn, grant)
        if fault is not None:
            faults.append((grant.work, fault))
    for work, fault in faults:
        turn.fail(work, fault.type, fault.message)
    return None


def _lease(turn: Turn, grant: AssignedRun) -> InputsFault | None:
    """The error of work that no runner can be given. Its run has no runner."""
    work, node = grant.work, grant.work.node
    # Work without templates sees nothing, but it may be the place where states meet.
    fault = inputs_fault(turn.execution, work) if work.is_templated or node.state_from else None
    is_deliverable = fault is None
    has_timeout = bool(node.timeout) and not grant.is_rendering
    turn.emit(
        RunLeased(
            turn.now,
            work.key,
            len(turn.execution.runs) + 1,
            0 if grant.is_rendering else work.attempts + 1,
            grant.instance_id if is_deliverable else "",
            grant.runner if is_deliverable else "",
            grant.traceparent,
            node.is_idempotent or grant.is_idempotent or grant.is_rendering,
            turn.now + node.timeout + BACKSTOP_MARGIN if has_timeout else 0,
        )
    )
    return fault


def release(turn: Turn, command: Release) -> CommandRefusal | None:
    is_reported = command.reason is not ReleaseReason.WITHDRAWN
    if not is_reported and command.run not in turn.execution.live:
        # The run was over before it was taken back.
        return None
    run = live_run(turn, command)
    if not isinstance(run, Run):
        return run
    work = run.work
    turn.keep_cursor(run, command.cursor)
    again_time = 0
    if is_reported:
        if work.hand_backs >= HAND_BACKS_MAX:
            turn.fail_run(work, ReportOfEnd(run.number, run.epoch), hand_back_error(run.runner), random=1.0)
            return None
        again_time = turn.now + hand_back_delay(work.hand_backs + 1)
    then = _ready_again(turn, work)
    may_have_begun = command.may_have_begun
    turn.emit(
        RunReleased(turn.now, work.key, run.number, command.reason, may_have_begun, is_reported, then, again_time)
    )
    return None


def lose_runner(turn: Turn, command: LoseRunner) -> CommandRefusal | None:
    for run in list(turn.execution.live.values()):
        is_meant = run.is_idempotent or not command.is_idempotent_only
        if run.instance_id == command.instance_id and is_meant:
            lose(turn, run, has_begun_runs=command.has_begun_runs)
    return None


def lose(turn: Turn, run: Run, *, has_begun_runs: bool) -> None:
    """`has_begun_runs`: the instance had begun some run."""
    work = run.work
    is_spared = has_begun_runs and run.state is RunState.LEASED and not work.was_spared
    reason = _why_not_again(turn, run, is_spared=is_spared)
    error = death_error(run.runner, reason, is_rendering=run.is_rendering)
    turn.emit(
        RunLost(
            turn.now,
            work.key,
            run.number,
            error,
            fingerprint(work.node.module, Error(error.error_class, error.type, "")),
            reason,
            work.node.is_failure_handled,
            _ready_again(turn, work) if reason is None else turn.after_failure(work, reason),
            is_spared,
            turn.holds(work, reason),
        )
    )
    turn.after_final_failure(work)


def _why_not_again(turn: Turn, run: Run, *, is_spared: bool) -> FailureReason | None:
    if turn.execution.stop is not None:
        return FailureReason.STOPPED
    if is_spared:
        return None
    return FailureReason.POISON if len({*run.work.dead_instances, run.instance_id}) >= DEATHS_MAX else None


def _ready_again(turn: Turn, work: Work) -> Consequences:
    return NOTHING_FOLLOWS if turn.execution.stop is not None else Consequences(ready=(work.key,))
