"""The holder's side of all its sessions: one lease table, and one stream per server.

A stream goes DIALLED ─ attach sent ─► ATTACHING ─ Attached ─► LIVE ─ server drains ─► LEAVING. The messages
of a server have these effects:

| state     | Attached        | fault                     | anything else, or nothing |
|-----------|-----------------|---------------------------|---------------------------|
| DIALLED   | redial          | redial                    | redial                    |
| ATTACHING | becomes LIVE    | redial; INSTANCE_ENDED: see below | redial            |
| LIVE      | redial          | redial; INSTANCE_ENDED    | served                    |
| LEAVING   | redial          | redial; INSTANCE_ENDED    | served                    |

In a served frame, the answer to a beat that is not in flight leads to a redial. An acknowledgement of an
unknown report, the revocation of a lease or epoch that is not held, and an old credit confirmation change
nothing. A grant is refused when the holder drains (DRAINING), has no place promised (NO_CAPACITY), holds a
newer epoch (EPOCH_STALE) or has denied the same grant before (NOT_HELD). A grant that the holder has already
is only counted. A grant with a newer epoch replaces the held lease.

The holder *denies* a lease when it says that it does not hold it, or when any server takes it back. The work
may be granted elsewhere by then, while the grant itself is still unread on another stream. A denied grant is
never begun. The holder also ignores all grants on a stream that attached under an earlier instance.

The instance is LIVE until a server says INSTANCE_ENDED, or refuses to renew a beat, on a stream that attached
under it. Then all leases are gone, and all streams are dialled again under a fresh instance id. Reports stay,
because the server judges them by their epochs.

The self-fence: `may_start` is judged from the *sending* of the newest answered beat or attach, on any stream.

The times are those of the server that has answered an attach last, so that one setting of the servers decides. Until
then the holder takes its own. An Attached whose times contradict each other leads to a redial.

Hazard: `now` must come from one monotonic clock in all calls.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from services.chassis.lease.division import divide
from services.chassis.lease.effects import HolderEffects, Redial
from services.chassis.lease.frames import (
    FRAME_ITEMS_MAX,
    REPORT_INVALID,
    REPORTS_IN_FLIGHT_MAX,
    Attach,
    Attached,
    BeatAnswer,
    Grant,
    HolderFrame,
    Lease,
    Refused,
    Report,
    ServerFrame,
    StreamFault,
)
from services.chassis.lease.stream import HolderStream, StreamState
from services.chassis.lease.timing import LeaseTiming

# Denials are remembered, so that a grant that turns up later stays denied.
DENIED_MAX = 10_000


@dataclass(slots=True)
class HeldLease:
    """A lease that `is_active` until its last report is made. It is held until that report is answered."""

    epoch: int
    # The server that serves the lease. Its reports go there first.
    address: str
    is_active: bool = True


class HolderRules:
    def __init__(self, attach: Attach, timing: LeaseTiming, fresh_instance: Callable[[], str]) -> None:
        """`attach` is what the holder says of itself. Its instance and leases are filled in here."""
        self.instance_id = fresh_instance()
        self.capacity = attach.capacity
        self.is_draining = False
        self.is_fenced = True
        self.loop_lag = 0.0
        self.streams: dict[str, HolderStream] = {}
        self.held: dict[str, HeldLease] = {}
        self._attach = attach
        self.timing = timing
        self._fresh_instance = fresh_instance
        self._active = 0
        # The time at which the newest answered beat or attach was sent. None: none under this instance.
        self._alive_at: float | None = None
        # Denied leases, each with the address of the server that took it back. "": the holder denied it itself.
        self._denied: OrderedDict[tuple[str, int], str] = OrderedDict()
        # Reports for which no stream is live.
        self._waiting: deque[tuple[Report, bool]] = deque()
        self._needs_plan = False

    # ── calls of the owner ────────────────────────────────────────────────────────────────────────────────

    def may_start(self, now: float) -> bool:
        return self._alive_at is not None and now - self._alive_at < self.timing.self_fence

    @property
    def leases(self) -> dict[str, int]:
        return {lease_id: held.epoch for lease_id, held in self.held.items()}

    @property
    def reports_unanswered(self) -> int:
        return len(self._waiting) + sum(len(each.in_flight) + len(each.to_send) for each in self.streams.values())

    @property
    def is_drained(self) -> bool:
        return self.is_draining and not self.held and not self.reports_unanswered

    def report(self, report: Report, *, ends_lease: bool) -> None:
        """Keep the report until it is answered.

        One that ends its lease frees the place at once, but the lease stays held until the answer. A report
        about a revoked lease goes to the server that revoked it, which may wait to hear that the work stopped.
        """
        held = self.held.get(report.lease_id)
        if held is not None and held.epoch == report.epoch:
            if ends_lease and held.is_active:
                held.is_active = False
                self._active -= 1
                self._needs_plan = True
            address = held.address
        else:
            address = self._denied.get((report.lease_id, report.epoch), "")
        stream = self.streams.get(address)
        if stream is not None and stream.is_live:
            stream.to_send.append((report, ends_lease))
        else:
            self._route(report, ends_lease)

    def refuse(self, lease_id: str, epoch: int, reason: str, message: str = "") -> None:
        """Give a granted lease back. Its work will not be started under this epoch."""
        held = self.held.get(lease_id)
        if held is None or held.epoch != epoch:
            return
        self._drop(lease_id)
        self._deny(lease_id, epoch)
        stream = self.streams.get(held.address)
        if stream is not None and stream.is_live:
            stream.refused.append(Refused(lease_id, epoch, reason, message))

    def post(self, address: str, notes: Iterable[object]) -> None:
        """Queue notes for one server. They are lost when its stream breaks."""
        stream = self.streams.get(address)
        if stream is not None and stream.is_live:
            stream.notes.extend(notes)

    def set_capacity(self, capacity: int) -> None:
        self.capacity = capacity
        self._needs_plan = True

    def drain(self) -> None:
        self.is_draining = True
        self._needs_plan = True
        for stream in self.streams.values():
            stream.owes_drain = True

    # ── streams come and go ───────────────────────────────────────────────────────────────────────────────

    def dialled(self, address: str, now: float) -> None:
        """A new stream is open for writing."""
        if address in self.streams:
            raise ValueError(f"a stream to {address} is still known; say that it is lost first")
        stream = HolderStream(address, self.instance_id, now)
        stream.owes_drain = self.is_draining
        self.streams[address] = stream

    def lost(self, address: str) -> None:
        """The stream is gone. Beats on the other streams tell at once that the instance lives."""
        stream = self.streams.pop(address, None)
        if stream is None:
            return
        self._needs_plan = True
        for other in self.streams.values():
            other.owes_beat = other.is_live
        for report, ends_lease in [*stream.in_flight.values(), *stream.to_send]:
            self._route(report, ends_lease)

    def _route(self, report: Report, ends_lease: bool) -> None:
        """Queue the report on the live stream with the fewest reports. Without one it waits."""
        live = [each for each in self.streams.values() if each.is_live]
        if live:
            min(live, key=lambda each: len(each.to_send)).to_send.append((report, ends_lease))
        else:
            self._waiting.append((report, ends_lease))

    # ── messages of a server ──────────────────────────────────────────────────────────────────────────────

    def receive(self, address: str, frame: ServerFrame, now: float) -> HolderEffects:
        effects = HolderEffects()
        stream = self.streams.get(address)
        if stream is None:
            return effects
        stream.heard_at = now
        if stream.instance_id != self.instance_id:
            # Its grants belong to an instance that has ended. Its answers say nothing about the present one.
            effects.redials.append(Redial(address, "INSTANCE_ENDED"))
        elif stream.is_live and frame.attached is not None:
            effects.redials.append(Redial(address, "ATTACHED_TWICE"))
        elif stream.is_live:
            self._serve(stream, frame, effects)
        elif frame.fault is not None:
            self._serve_fault(stream, frame.fault, effects)
        elif frame.attached is None or stream.state is not StreamState.ATTACHING:
            effects.redials.append(Redial(address, "ATTACHED_EXPECTED"))
        elif (timing := frame.attached.timing) is None:
            effects.redials.append(Redial(address, "TIMING_INVALID"))
        else:
            self.timing = timing
            self._attached(stream, frame.attached, effects)
            self._serve(stream, frame, effects)
        return effects

    def _attached(self, stream: HolderStream, attached: Attached, effects: HolderEffects) -> None:
        stream.state = StreamState.LIVE
        self._needs_plan = True
        self._alive(stream, effects)
        effects.lost += self._revoke(stream, attached.refused)
        while self._waiting:
            stream.to_send.append(self._waiting.popleft())

    def _serve(self, stream: HolderStream, frame: ServerFrame, effects: HolderEffects) -> None:
        if frame.taken:
            effects.reports_taken = self._end_reported(stream, dict.fromkeys(frame.taken, ""))
        if frame.refused_reports:
            reasons = dict(frame.refused_reports)
            refused = self._end_reported(stream, reasons)
            effects.reports_refused = [(report, reasons[report.report_id]) for report in refused]
        if frame.grants:
            self._take_grants(stream, frame.grants, effects)
        if frame.revoked:
            effects.revoked = self._revoke(stream, frame.revoked)
        if frame.claims:
            self._serve_claims(stream, frame.claims)
        effects.notes += frame.notes
        if frame.credit_seen:
            stream.confirm(frame.credit_seen)
            self._needs_plan = True
        if frame.demand is not None and frame.demand != stream.demand:
            stream.demand = max(0, frame.demand)
            self._needs_plan = True
        if frame.is_draining:
            stream.state = StreamState.LEAVING
            self._needs_plan = True
        if frame.beat is not None:
            self._serve_beat(stream, frame.beat, effects)
        if frame.fault is not None and not effects.end_reason:
            self._serve_fault(stream, frame.fault, effects)

    def _end_reported(self, stream: HolderStream, reasons: Mapping[str, str]) -> list[Report]:
        """The reports that were answered. The leases that they ended are dropped, and others are still held: a report
        that the server could not read has ended nothing."""
        answered: list[Report] = []
        for report_id, reason in reasons.items():
            entry = stream.in_flight.pop(report_id, None)
            if entry is None:
                continue
            report, ends_lease = entry
            answered.append(report)
            if ends_lease and reason != REPORT_INVALID:
                held = self.held.get(report.lease_id)
                if held is not None and held.epoch == report.epoch:
                    del self.held[report.lease_id]
        return answered

    def _take_grants(self, stream: HolderStream, grants: Iterable[Grant], effects: HolderEffects) -> None:
        held, arrived = self.held, effects.grants
        for grant in grants:
            stream.arrived()
            lease_id = grant.lease_id
            known = held.get(lease_id)
            if known is not None and known.epoch == grant.epoch:
                known.address = stream.address
                continue
            refusal = self._refusal_of(grant, known, stream)
            if refusal:
                stream.refused.append(Refused(lease_id, grant.epoch, refusal))
                continue
            if known is not None:
                effects.lost += self._revoke(stream, [Refused(lease_id, known.epoch, "GRANTED_AGAIN")])
            held[lease_id] = HeldLease(grant.epoch, stream.address)
            arrived.append(grant)
        stream.bound = max(0, stream.bound)
        self._active += len(arrived)
        self._needs_plan = True

    def _refusal_of(self, grant: Grant, known: HeldLease | None, stream: HolderStream) -> str:
        if known is not None and known.epoch > grant.epoch:
            return "EPOCH_STALE"
        if self._denied and (grant.lease_id, grant.epoch) in self._denied:
            return "NOT_HELD"
        if self.is_draining:
            return "DRAINING"
        if stream.bound < 0:
            return "NO_CAPACITY"
        return ""

    def _revoke(self, stream: HolderStream, revoked: Iterable[Refused]) -> list[Refused]:
        """Drop each lease that is held under that epoch, and return those whose work must stop: it is not reported yet.

        A lease that is not held is denied too, because its grant may still come on another server's stream.
        """
        stopped: list[Refused] = []
        for each in revoked:
            self._deny(each.lease_id, each.epoch, stream.address)
            held = self.held.get(each.lease_id)
            if held is not None and held.epoch == each.epoch:
                if held.is_active:
                    stopped.append(each)
                self._drop(each.lease_id)
        return stopped

    def _drop(self, lease_id: str) -> None:
        held = self.held.pop(lease_id)
        if held.is_active:
            self._active -= 1
        self._needs_plan = True

    def _deny(self, lease_id: str, epoch: int, address: str = "") -> None:
        # A server that has taken the lease back still wants the last report on it, whoever asks for the lease later.
        self._denied[lease_id, epoch] = address or self._denied.get((lease_id, epoch), "")
        if len(self._denied) > DENIED_MAX:
            self._denied.popitem(last=False)

    def _serve_claims(self, stream: HolderStream, claims: Iterable[Lease]) -> None:
        for lease_id, epoch in claims:
            held = self.held.get(lease_id)
            if held is not None and held.epoch == epoch:
                held.address = stream.address
            else:
                self._deny(lease_id, epoch)
                stream.refused.append(Refused(lease_id, epoch, "NOT_HELD"))

    def _serve_beat(self, stream: HolderStream, answer: BeatAnswer, effects: HolderEffects) -> None:
        if not answer.is_renewed:
            self._end("RENEWAL_REFUSED", effects)
        elif not stream.beat_in_flight or answer.number != stream.beat_number:
            effects.redials.append(Redial(stream.address, "BEAT_ANSWER_UNEXPECTED"))
        else:
            stream.beat_in_flight = False
            if answer.wants_full:
                stream.told = None
            self._alive(stream, effects)

    def _serve_fault(self, stream: HolderStream, fault: StreamFault, effects: HolderEffects) -> None:
        if fault.reason == "INSTANCE_ENDED":
            self._end(fault.reason, effects)
        else:
            effects.redials.append(Redial(stream.address, fault.reason))

    def _alive(self, stream: HolderStream, effects: HolderEffects) -> None:
        """A server has answered a beat or attach of the present instance. It counts from its sending."""
        if self._alive_at is None or stream.beat_sent_at > self._alive_at:
            self._alive_at = stream.beat_sent_at
        if self.is_fenced and self.may_start(stream.heard_at):
            self.is_fenced = False
            effects.has_resumed = True

    def _end(self, reason: str, effects: HolderEffects) -> None:
        """The present instance is ENDED, and all its leases with it."""
        self.held.clear()
        self._active = 0
        self._alive_at = None
        self.is_fenced = True
        self.instance_id = self._fresh_instance()
        self._needs_plan = True
        effects.end_reason = reason
        effects.redials += [Redial(each, "INSTANCE_ENDED") for each in self.streams]

    # ── time and writing ──────────────────────────────────────────────────────────────────────────────────

    def tick(self, now: float) -> HolderEffects:
        """Call this several times per beat."""
        effects = HolderEffects()
        for stream in self.streams.values():
            if not stream.is_live:
                if now - stream.dialled_at > self.timing.self_fence:
                    effects.redials.append(Redial(stream.address, "ATTACH_UNANSWERED"))
            elif not stream.beat_in_flight:
                stream.owes_beat = stream.owes_beat or now - stream.beat_sent_at >= self.timing.beat
            elif now - max(stream.heard_at, stream.beat_sent_at) > self.timing.silence:
                effects.redials.append(Redial(stream.address, "SILENT"))
        if not self.is_fenced and not self.may_start(now):
            self.is_fenced = True
            effects.has_fenced = True
        return effects

    @property
    def has_uncounted(self) -> bool:
        """True when grants have come that their server was not told of. The count alone is not worth a frame."""
        return any(stream.uncounted for stream in self.streams.values())

    def count_grants(self) -> None:
        """The counts have waited long enough for another frame: send them now."""
        for stream in self.streams.values():
            stream.owes_count = stream.uncounted > 0

    def owing(self) -> Iterator[str]:
        """The addresses of the streams that have something to send now."""
        if self._needs_plan:
            self._plan()
        for stream in self.streams.values():
            if self._owes(stream):
                yield stream.address

    def _owes(self, stream: HolderStream) -> bool:
        if not stream.is_live:
            return stream.state is StreamState.DIALLED
        return bool(
            (stream.to_send and len(stream.in_flight) < REPORTS_IN_FLIGHT_MAX)
            or stream.owes_count
            or stream.uncounted >= FRAME_ITEMS_MAX
            or stream.refused
            or stream.notes
            or stream.owes_credit
            or (stream.owes_beat and not stream.beat_in_flight)
            or stream.owes_drain
        )

    def take_frame(self, address: str, now: float, items_max: int = FRAME_ITEMS_MAX) -> HolderFrame | None:
        """All that is to be sent to this server now, at most `items_max` items of a kind. None: nothing is."""
        stream = self.streams.get(address)
        if self._needs_plan:
            self._plan()
        if stream is None or not self._owes(stream):
            return None
        if not stream.is_live:
            return self._attach_frame(stream, now)
        frame = HolderFrame(grants_seen=stream.received)
        stream.said_received, stream.owes_count = stream.received, False
        if stream.refused:
            frame.refused, stream.refused = stream.refused, []
        if stream.to_send:
            frame.reports = self._send_reports(stream, items_max)
        if stream.notes:
            frame.notes = [stream.notes.popleft() for _ in range(min(items_max, len(stream.notes)))]
        frame.credit = stream.take_credit()
        if stream.owes_beat and not stream.beat_in_flight:
            frame.beat = stream.take_beat(self.leases, self.loop_lag, now)
        frame.is_draining, stream.owes_drain = stream.owes_drain, False
        return frame

    def _attach_frame(self, stream: HolderStream, now: float) -> HolderFrame:
        stream.state = StreamState.ATTACHING
        stream.beat_sent_at = now
        held = [Lease(lease_id, each.epoch) for lease_id, each in self.held.items()]
        attach = replace(self._attach, instance_id=stream.instance_id, held=held)
        return HolderFrame(attach=attach)

    def _send_reports(self, stream: HolderStream, items_max: int) -> list[Report]:
        count = min(items_max, len(stream.to_send), REPORTS_IN_FLIGHT_MAX - len(stream.in_flight))
        reports: list[Report] = []
        for _ in range(count):
            entry = stream.to_send.popleft()
            stream.in_flight[entry[0].report_id] = entry
            reports.append(entry[0])
        return reports

    def _plan(self) -> None:
        self._needs_plan = False
        divide(self.streams.values(), 0 if self.is_draining else max(0, self.capacity - self._active))
