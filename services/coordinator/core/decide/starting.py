"""The first event of an execution, and its change of hands."""

from services.coordinator.core.commands import Adopt, Start
from services.coordinator.core.decide.leasing import add_loss
from services.coordinator.core.decide.plan import Plan
from services.coordinator.core.decide.stopping import order_cancel, order_timeout
from services.coordinator.core.decision import Decision, RefusalReason, refuse
from services.coordinator.core.events import ExecutionAdopted, ExecutionStarted
from services.coordinator.core.state import Execution
from services.coordinator.core.values import Instant


def start(execution: Execution, command: Start, now: Instant) -> Decision:
    if execution.seq:
        return refuse(RefusalReason.ALREADY_STARTED, "the execution has started")
    plan = Plan(execution, now)
    started = _started(execution, command, now)
    plan.add(started)
    if command.cancel is not None:
        order_cancel(plan, command.cancel)
    elif started.deadline and started.deadline <= now:
        order_timeout(plan, started.deadline - started.create_time)
    else:
        plan.start_roots()
    return plan.conclude()


def _started(execution: Execution, command: Start, now: Instant) -> ExecutionStarted:
    create_time = command.create_time or now
    timeout = execution.definition.timeout
    return ExecutionStarted(
        time=now,
        epoch=command.epoch,
        holder=command.holder,
        workspace=command.workspace,
        workflow=command.workflow,
        version=command.version,
        version_id=command.version_id,
        input=command.input,
        # In the order in which they will be read back.
        labels=tuple(sorted(command.labels)),
        priority=command.priority,
        trigger_type=command.trigger_type,
        caller=command.caller,
        request_id=command.request_id,
        parent_execution_id=command.parent_execution_id,
        create_time=create_time,
        grant_time=command.grant_time or now,
        deadline=command.deadline or (create_time + timeout if timeout else 0),
        traceparent=command.traceparent,
        retry=command.retry,
    )


def adopt(execution: Execution, command: Adopt, now: Instant) -> Decision:
    """Live runs stay with their runners; only those of the dead are lost."""
    if command.epoch <= execution.epoch:
        return refuse(
            RefusalReason.STALE_EPOCH, f"epoch {command.epoch} does not follow epoch {execution.epoch}"
        )
    if execution.is_final:
        return refuse(RefusalReason.EXECUTION_FINAL, "the execution is final")
    plan = Plan(execution, now)
    plan.add(ExecutionAdopted(now, command.epoch, command.holder))
    for run in list(execution.live.values()):
        if run.instance_id not in command.live:
            add_loss(plan, run)
    return plan.conclude()
