"""The holder's side of all its sessions: one lease table, one stream per server.

Per stream: DIALLED ─ attach sent ─► ATTACHING ─ Attached ─► LIVE ─ server drains ─► LEAVING. What a server
may say:

| state     | Attached        | fault                     | anything else, or nothing |
|-----------|-----------------|---------------------------|---------------------------|
| DIALLED   | redial          | redial                    | redial                    |
| ATTACHING | becomes LIVE    | redial; INSTANCE_ENDED: see below | redial            |
| LIVE      | redial          | redial; INSTANCE_ENDED    | served                    |
| LEAVING   | redial          | redial; INSTANCE_ENDED    | served                    |

Served, but: the answer to a beat that is not in flight is a redial; an acknowledgement of an unknown
report, the revocation of a lease or epoch not held, and an old credit confirmation change nothing. A grant
is refused when the holder drains (DRAINING), has no place promised (NO_CAPACITY), holds a newer epoch
(EPOCH_STALE) or has denied the same before (NOT_HELD); one that it already holds is counted and nothing
else; one with a newer epoch than the held one replaces it.

Denied is what the holder said that it does not hold, and what any server took back from it: both may be
granted elsewhere by now, while the grant itself is still unread on another stream. Such a grant is never
begun. A stream that attached under an earlier instance brings none either: it is heard no more.

The instance is LIVE until a server says INSTANCE_ENDED (or answers a beat with "not renewed") to a stream
that attached under it. Then every lease is gone, all streams are dialled again under a fresh instance id;
reports stay, for their epochs decide what they are worth.

Self-fence: `may_start` is judged from the *sending* of the newest beat (or attach) that was answered, on
any stream.

Hazard: `now` must be one monotonic clock over all calls.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from services.chassis.lease.actions import (
    Fenced,
    GrantsArrived,
    HolderAction,
    InstanceEnded,
    LeasesRevoked,
    NotesArrived,
    Redial,
    ReportsRefused,
    ReportsTaken,
    Resumed,
)
from services.chassis.lease.division import STANDING, shares
from services.chassis.lease.frames import (
    FRAME_ITEMS_MAX,
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
from services.chassis.lease.profile import HolderProfile
from services.chassis.lease.stream import HolderStream, StreamState
from services.chassis.lease.timing import LeaseTiming

# Denials that are remembered, so that a lost grant that turns up later stays denied.
DENIED_MAX = 10_000


class HeldLease:
    """`is_active` until its ending report is made; held until that is answered."""

    __slots__ = ("address", "epoch", "is_active")

    def __init__(self, epoch: int, address: str) -> None:
        self.epoch = epoch
        # Of the server that serves it, where its reports go first.
        self.address = address
        self.is_active = True


class HolderRules:
    """All sessions of one holder."""

    def __init__(
        self, profile: HolderProfile, capacity: int, timing: LeaseTiming, fresh_instance: Callable[[], str]
    ) -> None:
        self.instance_id = fresh_instance()
        self.capacity = capacity
        self.is_draining = False
        self.is_fenced = True
        self.loop_lag = 0.0
        self.streams: dict[str, HolderStream] = {}
        self.held: dict[str, HeldLease] = {}
        self._profile = profile
        self._timing = timing
        self._fresh_instance = fresh_instance
        self._active = 0
        # When the newest answered sign of life was sent; None: never under this instance.
        self._alive_at: float | None = None
        # With the address of the server that took it back, "" for what was ours to deny.
        self._denied: OrderedDict[tuple[str, int], str] = OrderedDict()
        # Reports for which no stream is live.
        self._waiting: deque[tuple[Report, bool]] = deque()
        self._needs_plan = False

    # ── what the owner asks ───────────────────────────────────────────────────────────────────────────────

    def may_start(self, now: float) -> bool:
        return self._alive_at is not None and now - self._alive_at < self._timing.self_fence

    @property
    def leases(self) -> dict[str, int]:
        return {lease_id: held.epoch for lease_id, held in self.held.items()}

    @property
    def reports_unanswered(self) -> int:
        return len(self._waiting) + sum(
            len(each.in_flight) + len(each.to_send) for each in self.streams.values()
        )

    @property
    def is_drained(self) -> bool:
        return self.is_draining and not self.held and not self.reports_unanswered

    def report(self, report: Report, *, ends_lease: bool) -> None:
        """Keep it until it is answered.

        An ending one frees its place at once; the lease stays held until the answer. What is said of a lease
        that was taken back goes to who took it: that one may wait to hear that it has stopped.
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
        """Give a granted lease back; it will not be started under this epoch."""
        held = self.held.get(lease_id)
        if held is None or held.epoch != epoch:
            return
        self._drop(lease_id)
        self._deny(lease_id, epoch)
        stream = self.streams.get(held.address)
        if stream is not None and stream.is_live:
            stream.refused.append(Refused(lease_id, epoch, reason, message))

    def post(self, address: str, notes: Iterable[object]) -> None:
        """Notes for one server; lost with its stream."""
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
        """The stream is gone. The others are told at once that the instance lives."""
        stream = self.streams.pop(address, None)
        if stream is None:
            return
        self._needs_plan = True
        for other in self.streams.values():
            other.owes_beat = other.is_live
        for report, ends_lease in [*stream.in_flight.values(), *stream.to_send]:
            self._route(report, ends_lease)

    def _route(self, report: Report, ends_lease: bool) -> None:
        """To the live stream with the least to say, else wait for one."""
        live = [each for each in self.streams.values() if each.is_live]
        if live:
            min(live, key=lambda each: len(each.to_send)).to_send.append((report, ends_lease))
        else:
            self._waiting.append((report, ends_lease))

    # ── what a server says ────────────────────────────────────────────────────────────────────────────────

    def receive(self, address: str, frame: ServerFrame, now: float) -> list[HolderAction]:
        stream = self.streams.get(address)
        if stream is None:
            return []
        stream.heard_at = now
        if stream.instance_id != self.instance_id:
            # What it grants belongs to an instance that has ended; its answers say nothing about the present one.
            return [Redial(address, "INSTANCE_ENDED")]
        if not stream.is_live:
            return self._open(stream, frame)
        if frame.attached is not None:
            return [Redial(address, "ATTACHED_TWICE")]
        actions: list[HolderAction] = []
        self._serve_items(stream, frame, actions)
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
            self._serve_beat(stream, frame.beat, actions)
        if frame.fault is not None:
            self._serve_fault(stream, frame.fault, actions)
        return actions

    def _open(self, stream: HolderStream, frame: ServerFrame) -> list[HolderAction]:
        actions: list[HolderAction] = []
        if frame.fault is not None:
            self._serve_fault(stream, frame.fault, actions)
        elif stream.state is not StreamState.ATTACHING or frame.attached is None:
            actions.append(Redial(stream.address, "ATTACHED_EXPECTED"))
        else:
            self._attached(stream, frame.attached, actions)
            actions += self.receive(stream.address, replace(frame, attached=None), stream.heard_at)
        return actions

    def _attached(self, stream: HolderStream, attached: Attached, actions: list[HolderAction]) -> None:
        stream.state = StreamState.LIVE
        self._needs_plan = True
        self._alive(stream, actions)
        if attached.refused:
            self._revoke(stream, attached.refused, actions)
        while self._waiting:
            stream.to_send.append(self._waiting.popleft())

    def _serve_items(self, stream: HolderStream, frame: ServerFrame, actions: list[HolderAction]) -> None:
        if frame.taken:
            self._forget(stream, frame.taken, actions)
        if frame.refused_reports:
            refused = [
                (stream.in_flight[each.report_id][0], each.reason)
                for each in frame.refused_reports
                if each.report_id in stream.in_flight
            ]
            self._end_reported(stream, [report.report_id for report, _ in refused])
            if refused:
                actions.append(ReportsRefused(refused))
        if frame.grants:
            self._take_grants(stream, frame.grants, actions)
        if frame.revoked:
            self._revoke(stream, frame.revoked, actions)
        if frame.claims:
            self._serve_claims(stream, frame.claims)
        if frame.notes:
            actions.append(NotesArrived(list(frame.notes)))

    def _forget(self, stream: HolderStream, report_ids: Iterable[str], actions: list[HolderAction]) -> None:
        taken = self._end_reported(stream, report_ids)
        if taken:
            actions.append(ReportsTaken(taken))

    def _end_reported(self, stream: HolderStream, report_ids: Iterable[str]) -> list[Report]:
        """The answered reports; leases that they ended are held no longer."""
        answered: list[Report] = []
        for report_id in report_ids:
            entry = stream.in_flight.pop(report_id, None)
            if entry is None:
                continue
            report, ends_lease = entry
            answered.append(report)
            if ends_lease:
                held = self.held.get(report.lease_id)
                if held is not None and held.epoch == report.epoch:
                    del self.held[report.lease_id]
        return answered

    def _take_grants(
        self, stream: HolderStream, grants: Iterable[Grant], actions: list[HolderAction]
    ) -> None:
        arrived: list[Grant] = []
        held = self.held
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
                self._revoke(stream, [Refused(lease_id, known.epoch, "GRANTED_AGAIN")], actions)
            held[lease_id] = HeldLease(grant.epoch, stream.address)
            arrived.append(grant)
        stream.bound = max(0, stream.bound)
        self._active += len(arrived)
        self._needs_plan = True
        if arrived:
            actions.append(GrantsArrived(arrived))

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

    def _revoke(self, stream: HolderStream, revoked: Iterable[Refused], actions: list[HolderAction]) -> None:
        """Drop what is really held under that epoch; what was reported already only waits for its answer.

        Denied all the same when it is not held: its grant may still come, on another server's stream.
        """
        stopped: list[Refused] = []
        for each in revoked:
            self._deny(each.lease_id, each.epoch, stream.address)
            held = self.held.get(each.lease_id)
            if held is not None and held.epoch == each.epoch:
                if held.is_active:
                    stopped.append(each)
                self._drop(each.lease_id)
        if stopped:
            actions.append(LeasesRevoked(stopped))

    def _drop(self, lease_id: str) -> None:
        held = self.held.pop(lease_id)
        if held.is_active:
            self._active -= 1
        self._needs_plan = True

    def _deny(self, lease_id: str, epoch: int, address: str = "") -> None:
        self._denied[lease_id, epoch] = address
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

    def _serve_beat(self, stream: HolderStream, answer: BeatAnswer, actions: list[HolderAction]) -> None:
        if not answer.is_renewed:
            self._end("RENEWAL_REFUSED", actions)
        elif not stream.beat_in_flight or answer.number != stream.beat_number:
            actions.append(Redial(stream.address, "BEAT_ANSWER_UNEXPECTED"))
        else:
            stream.beat_in_flight = False
            if answer.wants_full:
                stream.told = None
            self._alive(stream, actions)

    def _serve_fault(self, stream: HolderStream, fault: StreamFault, actions: list[HolderAction]) -> None:
        if fault.reason == "INSTANCE_ENDED":
            self._end(fault.reason, actions)
        else:
            actions.append(Redial(stream.address, fault.reason))

    def _alive(self, stream: HolderStream, actions: list[HolderAction]) -> None:
        """A sign of life of the present instance was answered; it counts from when it was sent."""
        if self._alive_at is None or stream.beat_sent_at > self._alive_at:
            self._alive_at = stream.beat_sent_at
        if self.is_fenced and self.may_start(stream.heard_at):
            self.is_fenced = False
            actions.append(Resumed())

    def _end(self, reason: str, actions: list[HolderAction]) -> None:
        """The present instance is ENDED, and so is everything that it held. Nothing is heard of an earlier one."""
        self.held.clear()
        self._active = 0
        self._alive_at = None
        self.is_fenced = True
        self.instance_id = self._fresh_instance()
        self._needs_plan = True
        actions.append(InstanceEnded(reason))
        actions += [Redial(each, "INSTANCE_ENDED") for each in self.streams]

    # ── time and writing ──────────────────────────────────────────────────────────────────────────────────

    def tick(self, now: float) -> list[HolderAction]:
        """Called several times per beat."""
        actions: list[HolderAction] = []
        for stream in self.streams.values():
            if not stream.is_live:
                if now - stream.dialled_at > self._timing.self_fence:
                    actions.append(Redial(stream.address, "ATTACH_UNANSWERED"))
            elif not stream.beat_in_flight:
                stream.owes_beat = stream.owes_beat or now - stream.beat_sent_at >= self._timing.beat
            elif now - max(stream.heard_at, stream.beat_sent_at) > self._timing.silence:
                actions.append(Redial(stream.address, "SILENT"))
        if not self.is_fenced and not self.may_start(now):
            self.is_fenced = True
            actions.append(Fenced())
        return actions

    @property
    def has_uncounted(self) -> bool:
        """Whether grants have come that their server has not been told of: the count alone is not worth a frame."""
        return any(stream.uncounted for stream in self.streams.values())

    def count_grants(self) -> None:
        """The counts have waited long enough for company."""
        for stream in self.streams.values():
            stream.owes_count = stream.uncounted > 0

    def owing(self) -> Iterator[str]:
        """The streams on which something is to be said now."""
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
        """All that is owed to this server now, at most `items_max` items; None when that is nothing."""
        stream = self.streams.get(address)
        if self._needs_plan:
            self._plan()
        if stream is None or not self._owes(stream):
            return None
        if not stream.is_live:
            return self._attach(stream, now)
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

    def _attach(self, stream: HolderStream, now: float) -> HolderFrame:
        stream.state = StreamState.ATTACHING
        stream.beat_sent_at = now
        profile = self._profile
        held = [Lease(lease_id, each.epoch) for lease_id, each in self.held.items()]
        return HolderFrame(
            attach=Attach(
                holder=profile.holder,
                instance_id=stream.instance_id,
                capacity=self.capacity,
                version=profile.version,
                held=held,
                labels=profile.labels,
                modules=profile.modules,
                idempotent_modules=profile.idempotent_modules,
            )
        )

    def _send_reports(self, stream: HolderStream, items_max: int) -> list[Report]:
        count = min(items_max, len(stream.to_send), REPORTS_IN_FLIGHT_MAX - len(stream.in_flight))
        reports: list[Report] = []
        for _ in range(count):
            entry = stream.to_send.popleft()
            stream.in_flight[entry[0].report_id] = entry
            reports.append(entry[0])
        return reports

    def _plan(self) -> None:
        """Divide the free places: raise credits from what is unassigned, call back where it is needed."""
        self._needs_plan = False
        live = [each for each in self.streams.values() if each.state is StreamState.LIVE]
        free = 0 if self.is_draining else max(0, self.capacity - self._active)
        unassigned = free - sum(each.promised for each in self.streams.values())
        targets = shares(free, [each.demand for each in live])
        wanted = 0
        for stream, target in zip(live, targets, strict=True):
            lack = target - stream.left
            if stream.confirms or lack < max(1, target // 8):
                continue
            raised = min(lack, max(0, unassigned))
            if raised:
                stream.restate(stream.left + raised)
                unassigned -= raised
            if raised < lack and (stream.demand > stream.left or stream.left < STANDING):
                wanted += lack - raised
        if wanted or unassigned < 0:
            self._call_back(live, targets, slack=4 if unassigned >= 0 else 0)

    def _call_back(self, live: list[HolderStream], targets: list[int], slack: int) -> None:
        """Lower credits to their targets.

        `slack` keeps small differences where they are, so that two busy servers do not trade places for ever.
        """
        promised = sum(stream.promised for stream in live)
        for stream, target in zip(live, targets, strict=True):
            over = stream.left - target
            if over > 0 and not stream.confirms and (not slack or over > target // slack):
                stream.restate(target)
        if sum(stream.promised for stream in live) < promised:
            # What no server had heard of yet is free at once.
            self._plan()
