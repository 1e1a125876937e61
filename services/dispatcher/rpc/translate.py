"""Translates protobuf messages to and from the values of core/, and refuses values that cannot be stored."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from services.chassis.grpc.errors import Refusal
from services.chassis.lease.frames import Grant
from services.chassis.telemetry.tracing import may_be_sampled
from services.dispatcher.core.items import (
    Claim,
    GivenUp,
    LeaseBegun,
    LeaseFinished,
    LeaseParked,
    LeaseReleased,
    LeaseReport,
    MailboxMessage,
    NewStart,
    QueuedRow,
    QueuePlace,
    RequeueOrder,
    RowToMake,
    WorkspaceLimits,
)
from services.dispatcher.rpc.spans import emit_grant
from windlass.dispatcher.v1 import queue_pb2, sessions_pb2
from windlass.types.v1 import start_pb2

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# This is far above the limit of api, and below the size of an index entry.
NAME_CHARACTERS_MAX: Final = 512
MESSAGE_ID_CHARACTERS_MAX: Final = 512
_INT32_MAX: Final = 2**31 - 1
PRIORITY_DEFAULT: Final = 3
_US: Final = 1_000_000
# A time further ahead cannot be stored everywhere.
_WAIT_MAX_US: Final = 36_500 * 86_400 * _US


class Malformed(Exception):
    """The fault of an item, for the log and for its answer."""


def is_execution_id(text: str) -> bool:
    """A UUID in lower case with hyphens: other services compare ids as text."""
    return _UUID.fullmatch(text) is not None


def new_start_of(item: queue_pb2.EnqueueItem) -> NewStart:
    """Raises Malformed."""
    start = item.start
    if not is_execution_id(start.execution_id):
        raise Malformed("execution_id must be a UUID in lower case")
    if not 0 < len(start.workspace) <= NAME_CHARACTERS_MAX or len(start.request_id) > NAME_CHARACTERS_MAX:
        raise Malformed(f"workspace and request_id have at most {NAME_CHARACTERS_MAX} characters")
    if "\x00" in start.workspace or "\x00" in start.request_id:
        raise Malformed("workspace and request_id cannot contain NUL")
    if not 0 <= start.priority <= 5:
        raise Malformed("priority must be 1 to 5")
    return NewStart(
        start.execution_id,
        start.workspace,
        start.priority or PRIORITY_DEFAULT,
        start.deadline_time.ToDatetime(UTC) if start.HasField("deadline_time") else None,
        start.request_id,
        item.request_hash,
        start.SerializeToString(),
        limits_of(item.limits),
        start,
    )


def limits_of(message: queue_pb2.TenantLimits) -> WorkspaceLimits:
    return WorkspaceLimits(max(0, message.executions_max), max(0, message.queued_max), message.revision)


def grant_of(claim: Claim) -> Grant:
    grant = sessions_pb2.ExecutionGrant()
    grant.lease.lease_id = claim.execution_id
    grant.lease.epoch = claim.epoch
    order = grant.start
    if isinstance(claim.start, start_pb2.StartOrder):
        order.CopyFrom(claim.start)
    else:
        assert isinstance(claim.start, bytes)
        order.ParseFromString(claim.start)
    if claim.is_resumed:
        grant.resumed = True
    if claim.has_begun:
        grant.begun = True
    if claim.is_ends_only:
        grant.ends_only = True
    _write_us(grant.enqueue_time, claim.enqueue_us)
    _write_us(grant.grant_time, claim.granted_us)
    if claim.wake_us:
        _write_us(grant.wake_time, claim.wake_us)
    for body in claim.messages:
        grant.messages.add().ParseFromString(body)
    if may_be_sampled(order.traceparent):
        traceparent = emit_grant(order, claim, time.time_ns())
        if traceparent is not None:
            order.traceparent = traceparent
    return Grant(claim.execution_id, claim.epoch, grant)


def _write_us(message: Timestamp, us: int) -> None:
    """Timestamp.FromMicroseconds takes half as long again, because it checks the range."""
    message.seconds, rest = divmod(us, _US)
    message.nanos = rest * 1_000


def report_of(message: sessions_pb2.ExecutionReport, now: datetime) -> LeaseReport | LeaseBegun | None:
    """`now` is the time of arrival. None: this version does not know the kind of report, or the id is malformed."""
    lease_id, epoch = message.head.lease_id, message.head.epoch
    if not is_execution_id(lease_id):
        return None
    kind = message.WhichOneof("report")
    if kind == "finished":
        return LeaseFinished(lease_id, epoch)
    if kind == "begun":
        return LeaseBegun(lease_id, epoch)
    if kind == "parked":
        parked = message.parked
        seen = tuple([clean(each) for each in parked.seen_message_ids])
        return LeaseParked(lease_id, epoch, _wake_time(parked, now), seen)
    if kind == "released":
        released = message.released
        return LeaseReleased(
            lease_id,
            epoch,
            released.failed,
            released.permanent,
            clean(released.reason),
            clean(released.message),
            released.begun,
        )
    return None


def _wake_time(parked: sessions_pb2.ExecutionReport.Parked, now: datetime) -> datetime | None:
    """The wake time by our clock. The coordinator's clock only says how much time was left when it sent the report."""
    if not parked.HasField("wake_time"):
        return None
    left_us = _micros(parked.wake_time)
    left_us -= _micros(parked.park_time) if parked.HasField("park_time") else round(now.timestamp() * _US)
    return now + timedelta(microseconds=min(max(left_us, 0), _WAIT_MAX_US))


def _micros(time: Timestamp) -> int:
    """Microseconds since 1970, also of times that no datetime can hold."""
    return time.seconds * _US + time.nanos // 1_000


def clean(text: str) -> str:
    """Replace NUL, which the database cannot store in a text."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")


def mailbox_message_of(request: queue_pb2.DeliverRequest) -> MailboxMessage:
    message, workspace = request.message, request.workspace
    if not 0 < len(message.message_id) <= MESSAGE_ID_CHARACTERS_MAX:
        raise Refusal("INVALID_REQUEST", f"a message_id has 1 to {MESSAGE_ID_CHARACTERS_MAX} characters")
    if not is_execution_id(message.execution_id):
        raise Refusal("INVALID_REQUEST", "execution_id must be a UUID in lower case")
    kept = sessions_pb2.ExecutionMessage()
    kept.CopyFrom(message)
    if not kept.HasField("create_time"):
        kept.create_time.GetCurrentTime()
    body = kept.WhichOneof("body")
    row = _row_to_make(request.start, message.execution_id, workspace) if request.HasField("start") else None
    return MailboxMessage(
        kept.message_id,
        kept.execution_id,
        workspace,
        kept.SerializeToString(),
        is_ending=body == "cancel",
        row=row,
        is_in_order=body in ("cancel", "command"),
        waits_for_requeue=body == "child_ended",
    )


def _row_to_make(start: start_pb2.StartOrder, execution_id: str, workspace: str) -> RowToMake:
    if start.execution_id != execution_id or not workspace or start.workspace != workspace:
        raise Refusal("INVALID_REQUEST", "the start is that of another execution")
    return RowToMake(start.priority or PRIORITY_DEFAULT, start.SerializeToString())


def given_up_message(given_up: GivenUp) -> MailboxMessage | None:
    """The news for the parent; None: the execution has no parent."""
    order = start_pb2.StartOrder.FromString(given_up.start)
    if not is_execution_id(order.parent_execution_id):
        return None
    message = sessions_pb2.ExecutionMessage(
        message_id=f"child:{given_up.execution_id}:given_up:{given_up.failure_us}",
        execution_id=order.parent_execution_id,
    )
    ended = message.child_ended
    ended.child_execution_id = given_up.execution_id
    ended.given_up.reason, ended.given_up.message = given_up.failure_reason, given_up.failure_message
    return mailbox_message_of(queue_pb2.DeliverRequest(message=message, workspace=order.workspace))


def queued_of(row: QueuedRow) -> queue_pb2.Queued:
    queued = queue_pb2.Queued(
        state=queue_pb2.Queued.State.ValueType(int(row.state)),
        failure_reason=row.failure_reason,
        failure_message=row.failure_message,
        dispatch_attempts=row.attempts,
        resolution=row.resolution,
        reviewer=row.reviewer,
        notes=row.notes,
        begun=row.has_begun,
    )
    queued.start.ParseFromString(row.start)
    messages = map(sessions_pb2.ExecutionMessage.FromString, row.unread)
    queued.unread_commands.extend(message.command for message in messages if message.HasField("command"))
    if row.failure_time is not None:
        queued.failure_time.FromDatetime(row.failure_time)
    if row.resolve_time is not None:
        queued.resolve_time.FromDatetime(row.resolve_time)
    return queued


def seen_time(request: queue_pb2.ResolveFailedRequest) -> datetime | None:
    """The time of the failure that the person has seen. None: the request does not say."""
    return request.failure_time.ToDatetime(UTC) if request.HasField("failure_time") else None


def listed_of(row: QueuedRow) -> queue_pb2.Queued:
    """The row for a list, which shows no input."""
    listed = queued_of(row)
    listed.start.ClearField("input")
    return listed


def without_input(start: bytes) -> bytes:
    """A serialized StartOrder as lists show it."""
    order = start_pb2.StartOrder.FromString(start)
    order.ClearField("input")
    return order.SerializeToString()


def requeue_of(request: queue_pb2.ResolveFailedRequest) -> RequeueOrder:
    start = request.start.SerializeToString()
    return RequeueOrder(
        start=start,
        shown_start=without_input(start),
        deadline_time=request.start.deadline_time.ToDatetime(UTC) if request.start.HasField("deadline_time") else None,
        failure_time=seen_time(request),
        reviewer=clean(request.reviewer),
        notes=clean(request.notes),
        request_id=clean(request.request_id),
        request_hash=request.request_hash,
    )


def place_of(place: QueuePlace | None) -> queue_pb2.GetQueuePlaceResponse:
    if place is None:
        return queue_pb2.GetQueuePlaceResponse()
    response = queue_pb2.GetQueuePlaceResponse(
        state=queue_pb2.Queued.State.ValueType(int(place.state)),
        ahead=place.ahead,
        slots_taken=place.slots_taken,
        slots_max=place.slots_max,
        holders=place.holders,
    )
    response.enqueue_time.FromDatetime(place.enqueue_time)
    if place.wake_time is not None:
        response.wake_time.FromDatetime(place.wake_time)
    return response
