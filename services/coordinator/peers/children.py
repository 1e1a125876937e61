"""Starts children at api, and translates the end of a child for its parent and back."""

from __future__ import annotations

import random
from typing import Final

from services.chassis.grpc.errors import Refusal
from services.chassis.grpc.timestamps import put_micros
from services.coordinator.app.ports import QueueFull, StartRefused
from services.coordinator.core.commands import EndChild
from services.coordinator.core.run_ids import run_id
from services.coordinator.core.state import ChildExecution, Execution
from services.coordinator.core.values import ExecutionState, FinalError, OutputRef, Value
from services.coordinator.peers.catalog import ApiReplicas
from windlass.catalog.v1.children_pb2 import StartChildRequest
from windlass.catalog.v1.children_pb2_grpc import ChildServiceStub
from windlass.coordinator.v1.children_pb2 import ChildOutcome
from windlass.dispatcher.v1.sessions_pb2 import ExecutionMessage
from windlass.journal.v1 import events_pb2
from windlass.types.v1.start_pb2 import StartOrder

# Longer than api waits for a dispatcher, and for its turn to check an input.
_CALL_SECONDS: Final = 10.0
_QUEUE_FULL: Final = "QUEUE_FULL"
# With these answers there is no child, and there will be none.
_REFUSALS: Final = (
    "WORKFLOW_NOT_FOUND",
    "VERSION_NOT_FOUND",
    "WORKFLOW_ARCHIVED",
    "INPUT_MISMATCH",
    "INVALID_REQUEST",
    "REQUEST_ID_REUSED",
    "WORKSPACE_DELETED",
    "INTERNAL",
)
_STATES: Final = {
    ExecutionState(name.removeprefix("FINAL_STATE_")): number
    for name, number in events_pb2.FinalState.items()
    if number
}
_BY_NUMBER: Final = {number: state for state, number in _STATES.items()}
# The type of the error of an execution that dispatchers have given up, as api shows it.
_ADMISSION: Final = "ADMISSION"


class ApiChildren:
    """Implements `Children`."""

    def __init__(self, replicas: ApiReplicas) -> None:
        self._replicas = replicas

    async def start(self, execution: Execution, child: ChildExecution, traceparent: str) -> None:
        request = StartChildRequest(order=_order(execution, child, traceparent))
        self._replicas.spread()
        try:
            await self._replicas.call(
                lambda channel: ChildServiceStub(channel).StartChild(request, timeout=_CALL_SECONDS),
                _QUEUE_FULL,
                *_REFUSALS,
            )
        except Refusal as refused:
            if refused.reason == _QUEUE_FULL:
                raise QueueFull(refused.message) from None
            raise StartRefused(refused.reason, refused.message) from None


def _order(execution: Execution, child: ChildExecution, traceparent: str) -> StartOrder:
    origin = execution.origin
    order = StartOrder(
        execution_id=child.execution_id,
        workspace=origin.workspace,
        workflow=child.workflow,
        version=child.version,
        input=child.input,
        priority=origin.priority,
        # The run that starts it. A person may use the same id, which fails the node.
        request_id=f"child:{run_id(execution, child.run)}",
        trigger_type=origin.trigger_type,
        caller=origin.caller,
        traceparent=traceparent,
        parent_execution_id=execution.execution_id,
        depth=origin.depth + 1,
    )
    if child.deadline:
        put_micros(order.deadline_time, child.deadline)
    return order


def end_message(execution: Execution) -> ExecutionMessage:
    """The end of the execution, for its parent. An execution that goes on after its end has another end, and so another
    message."""
    assert execution.final_state is not None
    outcome = ChildOutcome(state=events_pb2.FinalState.ValueType(_STATES[execution.final_state]))
    if execution.output is not None:
        _put_value(outcome.output, execution.output)
    if (error := execution.error) is not None:
        outcome.error.node, outcome.error.type, outcome.error.message = error.node, error.type, error.message
    return ExecutionMessage(
        message_id=f"child:{execution.execution_id}:{execution.seq}",
        execution_id=execution.origin.parent_execution_id,
        child_ended=ExecutionMessage.ChildEnded(
            child_execution_id=execution.execution_id, outcome=outcome.SerializeToString()
        ),
    )


def end_command(message: ExecutionMessage.ChildEnded) -> EndChild | None:
    """None: this version does not know how the child ended."""
    child_execution_id = message.child_execution_id
    end = message.WhichOneof("end")
    if end == "given_up":
        given_up = message.given_up
        error = FinalError("", _ADMISSION, ": ".join(filter(None, (given_up.reason, given_up.message))))
        return EndChild(child_execution_id, ExecutionState.FAILED, None, error, random.random())
    if end != "outcome":
        return None
    outcome = ChildOutcome.FromString(message.outcome)
    state = _BY_NUMBER.get(outcome.state)
    if state is None:
        return None
    if state is ExecutionState.SUCCESS:
        return EndChild(child_execution_id, state, _value_of(outcome.output), None, random.random())
    error = FinalError(outcome.error.node, outcome.error.type, outcome.error.message)
    return EndChild(child_execution_id, state, None, error, random.random())


def _put_value(to: events_pb2.Value, value: Value) -> None:
    if isinstance(value, OutputRef):
        to.ref.key, to.ref.sha256, to.ref.size_bytes = value.key, value.sha256, value.size_bytes
    else:
        to.json = value


def _value_of(value: events_pb2.Value) -> Value:
    if value.HasField("ref"):
        return OutputRef(value.ref.key, value.ref.sha256, value.ref.size_bytes)
    return value.json or b"null"
