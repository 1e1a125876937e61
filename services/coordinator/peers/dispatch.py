"""The coordinator as a holder of executions: one session with every dispatcher.

The session repeats a report until a dispatcher has committed it. A lease counts against the capacity of this
coordinator until it is reported finished, parked or released.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final

from services.chassis.grpc.timestamps import micros_of, put_micros
from services.chassis.lease.frames import Grant, Refused, Report
from services.chassis.process.clock import Clock
from services.chassis.process.crash import crash_point
from services.chassis.session.codec import HopCodec
from services.chassis.session.holder import SessionHolder
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import counter, gauge
from services.chassis.telemetry.tracing import parse_traceparent
from services.coordinator.app.owned_execution import OwnedExecution, ReceivedMessage
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.app.ports import Watchers
from services.coordinator.core.commands import Cancel, Command, Pause, PersonCommand, Resume, Start
from services.coordinator.core.values import Instant, Origin
from services.coordinator.peers.children import end_command
from services.coordinator.peers.person_commands import read_command
from windlass.dispatcher.v1 import sessions_pb2 as pb
from windlass.types.v1.start_pb2 import StartOrder

log = logger(__name__)

# If more messages are open, the oldest is acknowledged to any dispatcher, like one that came with a grant.
_SENDERS_MAX: Final = 10_000

_ORIGIN_FIELDS: Final = tuple(field.name for field in fields(Origin))
_origin_values: Final = attrgetter(*_ORIGIN_FIELDS)

# Reads a run's report that another coordinator put into the mailbox.
ReadReport = Callable[[bytes], Command | None]


def codec(clock: Clock) -> HopCodec:
    def date(report: Any) -> None:
        """Sets the time of sending. A report may wait for a dispatcher, and the time until the wake goes on
        meanwhile."""
        if report.WhichOneof("report") == "parked":
            put_micros(report.parked.park_time, clock.epoch_ns() // 1_000)

    return HopCodec(
        holder_frame=pb.SessionRequest,
        server_frame=pb.SessionResponse,
        holder_notes="message_acks",
        server_notes="messages",
        date_report=date,
    )


_granted = counter("coordinator_executions_granted_total", "Executions granted by dispatchers.")
_held = gauge("coordinator_executions_held", "Executions in memory.")
_refused = counter("coordinator_reports_refused_total", "Reports that a dispatcher refused.", ["reason"])


class SessionDispatch:
    """Implements `Dispatch` for the commit loop and `HolderOwner` for the session. Its attributes are set after
    construction, because each of them needs this object."""

    executions: OwnedExecutions
    watchers: Watchers
    holder: SessionHolder

    def __init__(self, holder_name: str, read_report: ReadReport) -> None:
        self._holder_name = holder_name
        self._read_report = read_report
        self._unsent: list[str] = []
        # The dispatcher that sent each message, which gets the acknowledgement.
        self._senders: OrderedDict[str, str] = OrderedDict()

    # ── Dispatch ─────────────────────────────────────────────────────────────────────────────────────────────────

    def may_start(self) -> bool:
        return self.holder.may_start()

    def finished(self, execution_id: str, epoch: int) -> None:
        crash_point("coordinator.finished.before")
        report = pb.ExecutionReport(finished=pb.ExecutionReport.Finished())
        self._report(execution_id, epoch, report)
        crash_point("coordinator.finished.after")

    def parked(self, execution_id: str, epoch: int, *, wake_time: Instant, seen: Sequence[str]) -> None:
        crash_point("coordinator.parked.before")
        report = pb.ExecutionReport(parked=pb.ExecutionReport.Parked(seen_message_ids=seen))
        if wake_time:
            put_micros(report.parked.wake_time, wake_time)
        self._report(execution_id, epoch, report)
        crash_point("coordinator.parked.after")

    def released(
        self, execution_id: str, epoch: int, reason: str, message: str, *, failed: bool, permanent: bool, begun: bool
    ) -> None:
        crash_point("coordinator.released.before")
        released = pb.ExecutionReport.Released(
            failed=failed, permanent=permanent, reason=reason, message=message, begun=begun
        )
        self._report(execution_id, epoch, pb.ExecutionReport(released=released))
        crash_point("coordinator.released.after")

    def begun(self, execution_id: str, epoch: int) -> None:
        report = pb.ExecutionReport(begun=pb.ExecutionReport.Begun())
        self._report(execution_id, epoch, report, ends_lease=False)

    def _report(self, execution_id: str, epoch: int, report: pb.ExecutionReport, *, ends_lease: bool = True) -> None:
        report_id = self.holder.new_report_id()
        head = report.head
        head.report_id, head.lease_id, head.epoch = report_id, execution_id, epoch
        self.holder.report(report_id, execution_id, epoch, report, ends_lease=ends_lease)

    def journalled(self, message_ids: Sequence[str]) -> None:
        by_sender: dict[str, list[str]] = {}
        for message_id in message_ids:
            sender = self._senders.pop(message_id, None)
            if sender is not None:
                by_sender.setdefault(sender, []).append(message_id)
            else:
                # It came with the grant. Any dispatcher takes the acknowledgement, so the next beat carries it.
                self._unsent.append(message_id)
        for sender, ids in by_sender.items():
            self.holder.post(sender, ids)

    # ── HolderOwner ──────────────────────────────────────────────────────────────────────────────────────────────

    def on_grants(self, grants: list[Grant]) -> None:
        _granted.inc(len(grants))
        works = [each.work for each in grants if isinstance(each.work, pb.ExecutionGrant)]
        for work in works:
            if work.start.watcher:
                self.watchers.granted(work.start.execution_id, work.start.watcher)
        self.executions.take_on(granted_execution(each, self._holder_name, self._read_report) for each in works)
        _held.set(len(self.executions.by_id))

    def on_revoked(self, revoked: list[Refused]) -> None:
        self.executions.revoked(revoked)

    def on_reports_taken(self, reports: list[Report]) -> None:
        _held.set(len(self.executions.by_id))

    def on_reports_refused(self, refused: list[tuple[Report, str]]) -> None:
        for report, reason in refused:
            _refused.labels(reason).inc()
            log.warning(
                "a dispatcher refused a report", execution_id=report.lease_id, epoch=report.epoch, reason=reason
            )

    def on_notes(self, address: str, notes: list[object]) -> None:
        messages = [note for note in notes if isinstance(note, pb.ExecutionMessage)]
        for message in messages:
            if message.execution_id in self.executions.by_id:
                self._senders[message.message_id] = address
        # Some messages are never journalled here, because their execution went to another holder.
        while len(self._senders) > _SENDERS_MAX:
            self._senders.popitem(last=False)
        self.executions.deliver(received_message(each, self._read_report) for each in messages)

    def beat_notes(self, address: str, *, is_full: bool) -> Sequence[object]:
        unsent, self._unsent = self._unsent, []
        return unsent

    def on_fenced(self) -> None:
        log.warning("no dispatcher answers: no run is leased", executions=len(self.executions.by_id))

    def on_resumed(self) -> None:
        log.info("dispatchers answer again")
        self.executions.level.set()

    def on_ended(self, reason: str) -> None:
        log.error("all execution leases are gone", reason=reason, executions=len(self.executions.by_id))
        self.executions.drop_all()


def granted_execution(grant: pb.ExecutionGrant, holder: str, read_report: ReadReport) -> OwnedExecution:
    messages = tuple(received_message(each, read_report) for each in grant.messages)
    start = start_command(grant, holder, messages)
    trace = parse_traceparent(start.origin.traceparent)
    return OwnedExecution(
        grant.lease.lease_id,
        start.epoch,
        start,
        trace=trace if trace is not None and trace.sampled else None,
        is_resumed=grant.resumed,
        ends_only=grant.ends_only,
        has_begun=grant.begun,
        is_known_begun=grant.begun,
        granted_messages=messages,
        unanswered={each.message_id for each in grant.messages},
        wake_time=micros_of(grant.wake_time),
    )


def received_message(message: pb.ExecutionMessage, read_report: ReadReport) -> ReceivedMessage:
    body = message.WhichOneof("body")
    command: Command | None = None
    if body == "cancel":
        command = cancel_command(message)
    elif body == "run_report":
        command = read_report(message.run_report)
    elif body == "child_ended":
        command = end_command(message.child_ended)
    elif body == "command":
        command = read_command(message)
    if isinstance(command, Cancel | PersonCommand) and message.HasField("seen_seq"):
        command.seen_seq = message.seen_seq
    return ReceivedMessage(message.message_id, message.execution_id, command)


def cancel_command(message: pb.ExecutionMessage) -> Cancel:
    return Cancel(message.message_id, message.cancel.reason, message.cancel.caller)


def start_command(grant: pb.ExecutionGrant, holder: str, messages: Sequence[ReceivedMessage] = ()) -> Start:
    order = grant.start
    cancel = None
    if grant.ends_only:
        cancels = (each for each in grant.messages if each.WhichOneof("body") == "cancel")
        cancel = next((cancel_command(each) for each in cancels), None)
    return Start(
        epoch=grant.lease.epoch,
        holder=holder,
        origin=_origin(order),
        grant_time=micros_of(grant.grant_time),
        deadline=micros_of(order.deadline_time),
        cancel=cancel,
        pause=_pause_at_start(messages),
    )


def _pause_at_start(messages: Sequence[ReceivedMessage]) -> Pause | None:
    """The pause with which the execution begins, so that not even a control node begins before it. One that was taken
    back in the queue is decided with the other messages, in their order."""
    if any(isinstance(message.command, Resume) for message in messages):
        return None
    return next((message.command for message in messages if isinstance(message.command, Pause)), None)


def _origin(order: StartOrder) -> Origin:
    """The message and the value have the same field names, so that a new field needs no line here."""
    values = dict(zip(_ORIGIN_FIELDS, _origin_values(order), strict=True))
    values["input"] = order.input or b"{}"
    values["labels"] = tuple(sorted(order.labels.items()))
    values["create_time"] = micros_of(order.create_time)
    return Origin(**values)
