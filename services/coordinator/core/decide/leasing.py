"""Runs given to runners, and runs that come back from them without an outcome.

A death costs the work one of its deaths; a hand-back costs nothing. Neither costs an attempt of the retry policy.
"""

from services.coordinator.core.commands import Assign, LoseRunner, Release
from services.coordinator.core.decide.plan import Plan
from services.coordinator.core.decide.reporting import live_run
from services.coordinator.core.decision import Decision, RefusalReason, nothing_new, refuse
from services.coordinator.core.events import Event, RunFailed, RunLeased, RunLost, RunReleased
from services.coordinator.core.inputs import INPUTS_BYTES_MAX, excess
from services.coordinator.core.retry import DEATHS_MAX, death_error
from services.coordinator.core.state import Execution, Run, Work
from services.coordinator.core.values import (
    Error,
    ErrorClass,
    FailureReason,
    Instant,
    ReleaseReason,
    fingerprint,
)


def assign(execution: Execution, command: Assign, now: Instant) -> Decision:
    """All of them or none: a work that is not ready means that the caller looked at another state. A work whose inputs
    no runner can be handed gets its run too, and fails with it."""
    if execution.is_final:
        return refuse(RefusalReason.EXECUTION_FINAL, "the execution is final")
    if execution.stop is not None:
        return refuse(RefusalReason.EXECUTION_STOPPING, "the execution is ending")
    ready, number = execution.ready, len(execution.runs)
    leases: list[Event] = []
    too_large: list[tuple[int, Work, int]] = []
    for grant in command.grants:
        work = grant.work
        if work not in ready:
            return refuse(RefusalReason.NOT_READY, f"{work.node.id} is not ready")
        number += 1
        size = excess(execution, work.node)
        if size:
            too_large.append((number, work, size))
        leases.append(
            RunLeased(
                now,
                number,
                work.node.id,
                work.iteration,
                work.generation,
                work.attempts + 1,
                "" if size else grant.instance_id,
                "" if size else grant.runner,
                grant.traceparent,
                work.node.is_idempotent or grant.is_idempotent,
            )
        )
    if len(leases) > 1 and len({id(grant.work) for grant in command.grants}) < len(leases):
        return refuse(RefusalReason.NOT_READY, "the same work twice")
    return _without(execution, leases, too_large, now) if too_large else Decision(leases)


def _without(
    execution: Execution, leases: list[Event], too_large: list[tuple[int, Work, int]], now: Instant
) -> Decision:
    plan = Plan(execution, now)
    plan.events += leases
    # From ready to live: as many are going as before.
    plan.live += len(leases)
    plan.minted += len(leases)
    for number, work, size in too_large:
        message = (
            f"the outputs that its templates see have {size} bytes together, and at most {INPUTS_BYTES_MAX} can be"
            " handed to a runner; refer to fewer outputs, or to smaller ones"
        )
        error = Error(ErrorClass.PERMANENT, "INPUTS_TOO_LARGE", message)
        is_wanted = plan.stop is None
        reason = FailureReason.PERMANENT_ERROR if is_wanted else FailureReason.STOPPED
        found = fingerprint(work.node.module, error)
        plan.end_live()
        plan.add(RunFailed(now, number, error, found, now, now, b"", b"", 0, 0, reason, is_reported=False))
        if is_wanted:
            plan.fail(work, error)
    return plan.conclude()


def release(execution: Execution, command: Release, now: Instant) -> Decision:
    is_reported = command.reason is not ReleaseReason.WITHDRAWN
    if not is_reported and command.number not in execution.live:
        # It was over before it was taken back.
        return nothing_new()
    run = live_run(execution, command, now)
    if isinstance(run, Decision):
        return run
    plan = Plan(execution, now)
    plan.add(RunReleased(now, run.number, command.reason, command.may_have_begun, is_reported))
    plan.end_live()
    if plan.stop is None:
        plan.going += 1
    return plan.conclude()


def lose_runner(execution: Execution, command: LoseRunner, now: Instant) -> Decision:
    plan = Plan(execution, now)
    for run in list(execution.live.values()):
        is_meant = run.is_idempotent or not command.is_idempotent_only
        if run.instance_id == command.instance_id and is_meant:
            add_loss(plan, run)
    return plan.conclude() if plan.events else nothing_new()


def add_loss(plan: Plan, run: Run) -> None:
    reason = _why_not_again(plan, run)
    plan.add(RunLost(plan.now, run.number, reason))
    plan.end_live()
    if reason is None:
        plan.going += 1
    elif reason is FailureReason.POISON:
        plan.fail(run.work, death_error(run.runner, reason))


def _why_not_again(plan: Plan, run: Run) -> FailureReason | None:
    if plan.stop is not None:
        return FailureReason.STOPPED
    return FailureReason.POISON if run.work.deaths + 1 >= DEATHS_MAX else None
