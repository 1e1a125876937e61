"""What dispatchers send, as plain values: granted executions and the messages of their mailboxes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from services.coordinator.app.received import GrantedExecution, ReceivedMessage
from services.coordinator.core.commands import Cancel, Command, Start
from services.coordinator.core.values import Origin
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant, ExecutionMessage
from windlass.types.v1.start_pb2 import StartOrder

# How a report of a run is read, which another coordinator put into the mailbox.
ReadReport = Callable[[bytes], Command | None]


def granted_execution(grant: ExecutionGrant, holder: str, read_report: ReadReport) -> GrantedExecution:
    return GrantedExecution(
        execution_id=grant.lease.lease_id,
        start=start_command(grant, holder),
        is_resumed=grant.resumed,
        messages=tuple(received_message(each, read_report) for each in grant.messages),
    )


def received_message(message: ExecutionMessage, read_report: ReadReport) -> ReceivedMessage:
    return ReceivedMessage(message.message_id, message.execution_id, _command(message, read_report))


def _command(message: ExecutionMessage, read_report: ReadReport) -> Command | None:
    body = message.WhichOneof("body")
    if body == "cancel":
        return cancel_command(message)
    return read_report(message.run_report) if body == "run_report" else None


def cancel_command(message: ExecutionMessage) -> Cancel:
    return Cancel(message.message_id, message.cancel.reason, message.cancel.caller)


def start_command(grant: ExecutionGrant, holder: str) -> Start:
    order = grant.start
    cancel = None
    if grant.ends_only:
        cancels = (each for each in grant.messages if each.WhichOneof("body") == "cancel")
        cancel = next((cancel_command(each) for each in cancels), None)
    return Start(
        epoch=grant.lease.epoch,
        holder=holder,
        origin=_origin(order),
        grant_time=_microseconds(grant, "grant_time"),
        deadline=_microseconds(order, "deadline_time"),
        cancel=cancel,
    )


def _origin(order: StartOrder) -> Origin:
    """The message and the value have the same field names, so that a new field needs no line here."""
    values = {field.name: getattr(order, field.name) for field in fields(Origin)}
    values["input"] = order.input or b"{}"
    values["labels"] = tuple(sorted(order.labels.items()))
    values["create_time"] = _microseconds(order, "create_time")
    return Origin(**values)


def _microseconds(message: Any, field: str) -> int:
    """A Timestamp or Duration field; 0 when it is absent."""
    if not message.HasField(field):
        return 0
    value: Timestamp = getattr(message, field)
    return value.seconds * 1_000_000 + value.nanos // 1_000
