"""A row of the dispatchers' queue as the execution that people see: PENDING, or FAILED when it was never admitted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import orjson

from services.chassis.telemetry import parse_traceparent
from windlass.api.v1 import resources_pb2
from windlass.coordinator.v1 import reads_pb2
from windlass.dispatcher.v1 import queue_pb2

Execution = resources_pb2.Execution
ADMISSION: Final = "ADMISSION"
# The type of the one event that a watch of an execution without a journal gets.
NOT_ADMITTED: Final = "ExecutionNotAdmitted"


def record_of(queued: queue_pb2.Queued) -> reads_pb2.ExecutionRecord:
    order = queued.start
    trace = parse_traceparent(order.traceparent)
    execution = Execution(
        id=order.execution_id,
        workflow=order.workflow,
        version=order.version,
        state=Execution.PENDING,
        labels=order.labels,
        priority=order.priority,
        trigger=Execution.Trigger(type=order.trigger_type, caller=order.caller),  # type: ignore[arg-type] # by number
        parent_execution_id=order.parent_execution_id,
        create_time=order.create_time,
        trace_id="" if trace is None else trace.trace_id_hex,
    )
    if order.HasField("deadline_time"):
        execution.deadline_time.CopyFrom(order.deadline_time)
    if queued.state == queue_pb2.Queued.FAILED:
        message = ": ".join(part for part in (queued.failure_reason, queued.failure_message) if part)
        execution.state = Execution.FAILED
        execution.error.type, execution.error.message = ADMISSION, message
        execution.end_time.CopyFrom(queued.failure_time)
        execution.last_seq = 1
    return reads_pb2.ExecutionRecord(execution=execution, workspace=order.workspace, input=order.input)


def fields_of(queued: queue_pb2.Queued) -> dict[str, str | int | datetime]:
    """By the names that a filter uses."""
    order = queued.start
    is_failed = queued.state == queue_pb2.Queued.FAILED
    fields: dict[str, str | int | datetime] = {
        "state": "FAILED" if is_failed else "PENDING",
        "workflow": order.workflow,
        "version": order.version,
        "priority": order.priority,
        "create_time": order.create_time.ToDatetime(UTC),
        "trigger.type": Execution.Trigger.Type.Name(order.trigger_type),  # type: ignore[arg-type] # by number
    }
    if order.parent_execution_id:
        fields["parent_execution_id"] = order.parent_execution_id
    if is_failed:
        fields["error.type"] = ADMISSION
        fields["end_time"] = queued.failure_time.ToDatetime(UTC)
    fields.update((f"labels.{key}", value) for key, value in order.labels.items())
    return fields


def failure_event(record: reads_pb2.ExecutionRecord) -> reads_pb2.EventRecord:
    """The whole story of an execution that was never admitted."""
    event = resources_pb2.Event(
        seq=1, type=NOT_ADMITTED, time=record.execution.end_time, state=Execution.FAILED
    )
    details = orjson.dumps({"type": ADMISSION, "message": record.execution.error.message})
    return reads_pb2.EventRecord(event=event, details=details)
