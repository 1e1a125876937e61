"""The message that hands a run to a runner."""

from __future__ import annotations

from services.chassis.lease.frames import Grant
from services.coordinator.core.effects import GrantRun
from services.coordinator.core.run_ids import run_id
from services.coordinator.core.state import Execution
from services.coordinator.core.values import Instant, OutputRef, Value
from windlass.coordinator.v1 import sessions_pb2 as pb


def run_grant(execution: Execution, effect: GrantRun, key: str, now: Instant) -> Grant:
    run, work, node = effect.run, effect.run.work, effect.run.work.node
    message = pb.RunGrant(
        execution_id=execution.execution_id,
        workspace=execution.origin.workspace,
        workflow=execution.origin.workflow,
        node=node.id,
        module=node.runner_module,
        iteration=work.key.iteration,
        generation=work.key.generation,
        attempt=run.attempt,
        config=node.config,
        inputs=node.runner_inputs,
        has_templates=node.has_templates,
        effect_key=key,
        may_have_run_before=work.may_have_run_before,
        idempotent=run.is_idempotent,
        render_only=node.is_control,
        traceparent=run.traceparent,
        cursor=work.cursor,
    )
    lease_id = run_id(execution, run.number)
    message.lease.lease_id, message.lease.epoch = lease_id, run.epoch
    if node.has_templates:
        # Only templates read these.
        message.execution_input, message.state = execution.origin.input, execution.definition.initial_state
        for name, value in effect.outputs:
            fill_output(message.outputs[name], value)
    if node.timeout:
        message.timeout.FromMicroseconds(node.timeout)
    if execution.deadline:
        # The time that is left, because the runner's clock may differ. 0 left is not the same as no deadline.
        message.execution_left.SetInParent()
        message.execution_left.FromMicroseconds(max(0, execution.deadline - now))
    return Grant(lease_id, run.epoch, message)


def fill_output(message: pb.Output, value: Value) -> None:
    if isinstance(value, OutputRef):
        message.ref.key, message.ref.sha256, message.ref.size_bytes = (value.key, value.sha256, value.size_bytes)
    else:
        message.json = value
