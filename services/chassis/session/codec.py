"""Translates frames to and from the protobuf messages of a hop. The hop's items pass through unchanged.

The two frame messages of a hop have a field `control` (HolderControl, ServerControl). The holder's has a
repeated field `reports`, the server's a repeated field `grants`, and each may have a repeated field of notes.
A grant has a field `lease`, and a report has a field `head`.

Hazard: `encode_…` may return several messages for one frame, because the size of a message is limited. They
must be written in order, with no other frame between them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from services.chassis.lease.frames import (
    Attach,
    Attached,
    Beat,
    BeatAnswer,
    Credit,
    Grant,
    HolderFrame,
    Lease,
    Refused,
    RefusedReport,
    Report,
    ServerFrame,
    StreamFault,
)
from services.chassis.lease.timing import LeaseTiming
from windlass.types.v1 import session_pb2 as pb

# This is below the 4 MiB that all our gRPC endpoints accept, with room for the control part.
MESSAGE_BYTES_MAX = 3 * 1024 * 1024 + 512 * 1024


@dataclass(frozen=True, slots=True)
class HopCodec:
    """The two frame messages of a hop, and the names of their fields of notes."""

    holder_frame: Callable[[], Any]
    server_frame: Callable[[], Any]
    holder_notes: str = ""
    server_notes: str = ""
    # This is called with the body of a report each time that it is written, so that it can be brought up to date. A
    # report may be written more than once, and long after it was made.
    date_report: Callable[[Any], None] | None = None

    # ── holder to server ──────────────────────────────────────────────────────────────────────────────────

    def encode_holder_frame(self, frame: HolderFrame) -> list[Message]:
        message = self.holder_frame()
        control = message.control
        if frame.attach is not None:
            _write_attach(frame.attach, control.attach)
        control.grants_seen = frame.grants_seen
        if frame.refused:
            control.refusals.extend(
                [pb.GrantRefusal(lease_id=i, epoch=e, reason=r, message=m) for i, e, r, m in frame.refused]
            )
        if frame.credit is not None:
            control.credit.number, control.credit.amount = frame.credit.number, frame.credit.amount
        if frame.beat is not None:
            _write_beat(frame.beat, control.beat)
        if frame.is_draining:
            control.drain = True
        if self.date_report is not None:
            for report in frame.reports:
                self.date_report(report.body)
        items = {"reports": [report.body for report in frame.reports], self.holder_notes: frame.notes}
        return _fill(message, self.holder_frame, items)

    def decode_holder_frame(self, message: Any) -> HolderFrame:
        control = message.control
        frame = HolderFrame(grants_seen=control.grants_seen, is_draining=control.drain)
        if control.HasField("attach"):
            frame.attach = _read_attach(control.attach)
        if control.refusals:
            frame.refused = [Refused(each.lease_id, each.epoch, each.reason, each.message) for each in control.refusals]
        if control.HasField("credit"):
            frame.credit = Credit(control.credit.number, control.credit.amount)
        if control.HasField("beat"):
            frame.beat = _read_beat(control.beat)
        if message.reports:
            frame.reports = [_read_report(each) for each in message.reports]
        if self.holder_notes and (notes := getattr(message, self.holder_notes)):
            frame.notes = list(notes)
        return frame

    # ── server to holder ──────────────────────────────────────────────────────────────────────────────────

    def encode_server_frame(self, frame: ServerFrame) -> list[Message]:
        message = self.server_frame()
        control = message.control
        if frame.attached is not None:
            _write_attached(frame.attached, control.attached)
        if frame.taken:
            control.taken_reports.extend(frame.taken)
        if frame.refused_reports:
            control.refused_reports.extend([pb.ReportRefusal(report_id=i, reason=r) for i, r in frame.refused_reports])
        if frame.beat is not None:
            control.beat.number = frame.beat.number
            control.beat.renewed = frame.beat.is_renewed
            control.beat.want_full = frame.beat.wants_full
        if frame.demand is not None:
            control.demand = frame.demand
        if frame.beat_heard:
            control.beat_heard = frame.beat_heard
        items = {"grants": [grant.work for grant in frame.grants], self.server_notes: frame.notes}
        messages = _fill(message, self.server_frame, items)
        _write_after_grants(frame, messages[-1].control)
        return messages

    def decode_server_frame(self, message: Any) -> ServerFrame:
        control = message.control
        frame = ServerFrame(credit_seen=control.credit_seen, beat_heard=control.beat_heard, is_draining=control.drain)
        if control.HasField("attached"):
            frame.attached = _read_attached(control.attached)
        if control.taken_reports:
            frame.taken = list(control.taken_reports)
        if control.refused_reports:
            frame.refused_reports = [RefusedReport(each.report_id, each.reason) for each in control.refused_reports]
        if control.revoked:
            frame.revoked = [Refused(each.lease_id, each.epoch, each.reason) for each in control.revoked]
        if control.claims:
            frame.claims = [Lease(each.lease_id, each.epoch) for each in control.claims]
        if control.HasField("demand"):
            frame.demand = control.demand
        if control.HasField("beat"):
            frame.beat = BeatAnswer(control.beat.number, control.beat.renewed, control.beat.want_full)
        if control.HasField("fault"):
            frame.fault = StreamFault(control.fault.reason, control.fault.message)
        if message.grants:
            frame.grants = [_read_grant(each) for each in message.grants]
        if self.server_notes and (notes := getattr(message, self.server_notes)):
            frame.notes = list(notes)
        return frame


# ── sizes ─────────────────────────────────────────────────────────────────────────────────────────────────


def _fill(message: Any, fresh: Callable[[], Any], items: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Put the items, by their fields, into the message, or into as many messages as they need.

    Almost every frame is small, so the size is computed once for the whole and not for each item.
    """
    filled = {name: values for name, values in items.items() if values}
    for name, values in filled.items():
        getattr(message, name).extend(values)
    if message.ByteSize() <= MESSAGE_BYTES_MAX:
        return [message]
    for name in filled:
        message.ClearField(name)
    messages = [message]
    room = MESSAGE_BYTES_MAX - message.ByteSize()
    for name, values in filled.items():
        for value in values:
            size = (len(value) if isinstance(value, str) else value.ByteSize()) + 8
            if size > room and messages[-1].ByteSize():
                messages.append(fresh())
                # A message without a control part is not accepted as a frame.
                messages[-1].control.SetInParent()
                room = MESSAGE_BYTES_MAX
            getattr(messages[-1], name).append(value)
            room -= size
    return messages


# ── grants and reports: only this code runs once per item ─────────────────────────────────────────────────


def _read_report(body: Any) -> Report:
    head = body.head
    return Report(head.report_id, head.lease_id, head.epoch, body, body.ByteSize())


def _read_grant(work: Any) -> Grant:
    lease = work.lease
    return Grant(lease.lease_id, lease.epoch, work)


# ── control messages ──────────────────────────────────────────────────────────────────────────────────────


def _write_attach(attach: Attach, message: pb.Attach) -> None:
    message.holder = attach.holder
    message.instance_id = attach.instance_id
    message.version = attach.version
    message.capacity = attach.capacity
    message.held.extend(_leases(attach.held))
    message.labels.update(attach.labels)
    message.modules.extend(attach.modules)
    message.idempotent_modules.extend(attach.idempotent_modules)
    message.wants_rendered = attach.wants_rendered


def _read_attach(message: pb.Attach) -> Attach:
    return Attach(
        holder=message.holder,
        instance_id=message.instance_id,
        capacity=message.capacity,
        version=message.version,
        held=[Lease(each.lease_id, each.epoch) for each in message.held],
        labels=dict(message.labels),
        modules=tuple(message.modules),
        idempotent_modules=tuple(message.idempotent_modules),
        wants_rendered=message.wants_rendered,
    )


# The times of a lease that concern its holder.
_TIMES = ("term", "beat", "self_fence", "granted_again", "closed_grace", "idempotent_grace")


def _write_attached(attached: Attached, message: pb.Attached) -> None:
    message.session_id = attached.session_id
    message.server = attached.server
    message.refused.extend([pb.Refused(lease_id=i, epoch=e, reason=r) for i, e, r, _ in attached.refused])
    for name in _TIMES:
        _write_seconds(getattr(message.timing, name), getattr(attached.timing, name))


def _read_attached(message: pb.Attached) -> Attached:
    return Attached(
        session_id=message.session_id,
        server=message.server,
        timing=_read_timing(message.timing),
        refused=[Refused(each.lease_id, each.epoch, each.reason) for each in message.refused],
    )


def _read_timing(message: pb.Timing) -> LeaseTiming | None:
    try:
        return LeaseTiming(**{name: _seconds(getattr(message, name)) for name in _TIMES})
    except ValueError:
        return None


def _write_beat(beat: Beat, message: pb.Beat) -> None:
    message.number = beat.number
    message.full = beat.is_full
    message.held_count = beat.held_count
    message.held.extend(_leases(beat.held))
    message.gone.extend(beat.gone)
    _write_seconds(message.loop_lag, beat.loop_lag)


def _read_beat(message: pb.Beat) -> Beat:
    return Beat(
        number=message.number,
        is_full=message.full,
        held_count=message.held_count,
        held=[Lease(each.lease_id, each.epoch) for each in message.held],
        gone=list(message.gone),
        loop_lag=_seconds(message.loop_lag),
    )


def _write_after_grants(frame: ServerFrame, control: pb.ServerControl) -> None:
    """The items that may name a grant go with the last grants or after them."""
    if frame.revoked:
        control.revoked.extend([pb.Revoke(lease_id=i, epoch=e, reason=r) for i, e, r, _ in frame.revoked])
    if frame.claims:
        control.claims.extend(_leases(frame.claims))
    if frame.credit_seen:
        control.credit_seen = frame.credit_seen
    if frame.is_draining:
        control.drain = True
    if frame.fault is not None:
        control.fault.reason, control.fault.message = frame.fault.reason, frame.fault.message


def _leases(leases: Iterable[Lease]) -> list[pb.Lease]:
    return [pb.Lease(lease_id=lease_id, epoch=epoch) for lease_id, epoch in leases]


def _write_seconds(message: Duration, seconds: float) -> None:
    message.FromNanoseconds(int(seconds * 1e9))


def _seconds(message: Duration) -> float:
    return message.seconds + message.nanos / 1e9
