"""A row of the dispatchers' queue as an execution: PENDING, or FAILED when it was given up.

An execution is given up when it cannot be admitted, or when no coordinator can continue it. Its journal then has no
final event; the row has its end.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import orjson

from services.chassis.telemetry.tracing import parse_traceparent
from windlass.api.v1 import resources_pb2
from windlass.coordinator.v1 import reads_pb2
from windlass.dispatcher.v1 import queue_pb2
from windlass.types.v1 import start_pb2

Execution = resources_pb2.Execution
ADMISSION: Final = "ADMISSION"
# The types of the last event of a watch, for executions that were given up: without a journal, or with an unfinished
# one.
NOT_ADMITTED: Final = "ExecutionNotAdmitted"
GIVEN_UP: Final = "ExecutionGivenUp"


def record_of(queued: queue_pb2.Queued) -> reads_pb2.ExecutionRecord:
    order = queued.start
    return reads_pb2.ExecutionRecord(execution=execution_of(queued), workspace=order.workspace, input=order.input)


def execution_of(queued: queue_pb2.Queued) -> Execution:
    execution = pending(queued.start)
    if queued.state == queue_pb2.Queued.FAILED:
        _end(execution, queued)
    return execution


def pending(order: start_pb2.StartOrder) -> Execution:
    """The execution as it was queued, without its input."""
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
    return execution


def given_up(record: reads_pb2.ExecutionRecord, queued: queue_pb2.Queued) -> reads_pb2.ExecutionRecord:
    """A started execution as its coordinator has it, with the end that its row has."""
    ended = reads_pb2.ExecutionRecord()
    ended.CopyFrom(record)
    _end(ended.execution, queued)
    return ended


def was_given_up(record: reads_pb2.ExecutionRecord) -> bool:
    """The error of a run may have the same type, but it has a node."""
    return record.execution.error.type == ADMISSION and not record.execution.error.node


def _end(execution: Execution, queued: queue_pb2.Queued) -> None:
    message = ": ".join(part for part in (queued.failure_reason, queued.failure_message) if part)
    execution.state = Execution.FAILED
    execution.error.type, execution.error.message = ADMISSION, message
    execution.end_time.CopyFrom(queued.failure_time)
    # `failure_event` comes after the last event of the journal.
    execution.last_seq += 1


def fields_of(execution: Execution) -> dict[str, str | int | datetime]:
    """The fields by the names that filters use. Absent fields are left out."""
    texts = {
        "error.type": execution.error.type,
        "error.node": execution.error.node,
        "error.message": execution.error.message,
        "trigger.caller": execution.trigger.caller,
        "parent_execution_id": execution.parent_execution_id,
    }
    fields: dict[str, str | int | datetime] = {
        "state": Execution.State.Name(execution.state),
        "workflow": execution.workflow,
        "version": execution.version,
        "priority": execution.priority,
        **{name: text for name, text in texts.items() if text},
        **{f"labels.{key}": value for key, value in execution.labels.items()},
    }
    for name in ("create_time", "start_time", "end_time"):
        if execution.HasField(name):
            fields[name] = getattr(execution, name).ToDatetime(UTC)
    if execution.trigger.type:
        fields["trigger.type"] = Execution.Trigger.Type.Name(execution.trigger.type)
    return fields


def failure_event(record: reads_pb2.ExecutionRecord) -> reads_pb2.EventRecord:
    """The last event of an execution that was given up. It is the only one if it was never admitted."""
    seq = record.execution.last_seq
    event = resources_pb2.Event(
        seq=seq, type=NOT_ADMITTED if seq == 1 else GIVEN_UP, time=record.execution.end_time, state=Execution.FAILED
    )
    details = orjson.dumps({"type": ADMISSION, "message": record.execution.error.message})
    return reads_pb2.EventRecord(event=event, details=details)
