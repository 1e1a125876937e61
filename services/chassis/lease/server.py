"""The server's side of one session.

These are the states, and the effect of each message of the holder. A message that does not fit is a fault:
the fault is the last frame, and the stream is closed.

    NEW ── attach, alone ──► OPENING ── accept ──► LIVE ── drain ──► DRAINING
     │                          │ refuse             │                  │
     └──────── fault ───────────┴────────────────────┴── fault, lost ───┴──► CLOSED

| state    | attach           | beat, credit, refusals, reports, notes, drain  | nothing at all  |
|----------|------------------|------------------------------------------------|-----------------|
| NEW      | judged           | ATTACH_EXPECTED                                | ATTACH_EXPECTED |
| OPENING  | ATTACH_PENDING   | ATTACH_PENDING                                 | ATTACH_PENDING  |
| LIVE     | ATTACHED_ALREADY | served                                         | served          |
| DRAINING | ATTACHED_ALREADY | served; credit is ignored, a second drain too  | served          |
| CLOSED   | ignored          | ignored                                        | ignored         |

A served frame may have these faults: a beat that does not have the next number, or comes before the last one
was answered (BEAT_OUT_OF_ORDER); a credit below 0 or over the limit (CREDIT_INVALID; a credit with an old
number is ignored); a count of grants that goes back or beyond what was sent (GRANTS_SEEN_INVALID); more
unanswered reports than the limit (FLOOD); too many leases (HELD_EXCEEDED); an id or a reason of more than
NAME_MAX characters (NAME_TOO_LONG).

The credit of the holder and the states of a grant are in grants.py. Only attach and beats tell the server which leases
the holder has.

Hazard: call `queue_grants` only for places that `take_credit` reserved before the claim was made. Otherwise the
holder may receive more grants than it has promised places.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum, auto

from services.chassis.lease.effects import ServerEffects
from services.chassis.lease.faults import TOO_MANY_HELD, fault_in_attach, has_long_name
from services.chassis.lease.frames import (
    CREDIT_MAX,
    FRAME_ITEMS_MAX,
    HELD_MAX,
    NAME_MAX,
    OUTGOING_MAX,
    REPORTS_FLOOD,
    Attach,
    Attached,
    Beat,
    BeatAnswer,
    Grant,
    HolderFrame,
    Lease,
    Refused,
    RefusedReport,
    ServerFrame,
    StreamFault,
)
from services.chassis.lease.grants import LostGrants, StreamGrants
from services.chassis.lease.outgoing import Outgoing
from services.chassis.lease.timing import LeaseTiming
from services.chassis.lease.unanswered import Unanswered

INSTANCE_ENDED = StreamFault("INSTANCE_ENDED", "the instance was ended; attach anew under a fresh instance_id")


class ServerState(Enum):
    NEW = auto()
    OPENING = auto()
    LIVE = auto()
    DRAINING = auto()
    CLOSED = auto()


class ServerSessionRules:
    """The state of one stream. `now` is a monotonic clock in seconds."""

    def __init__(
        self, session_id: str, server: str, timing: LeaseTiming, wake_writer: Callable[[], None] = lambda: None
    ) -> None:
        """`wake_writer` is called whenever `take_frame` may have something new."""
        self.session_id = session_id
        self.state = ServerState.NEW
        self.fault: StreamFault | None = None
        self.unanswered = Unanswered()
        self._attach: Attach | None = None
        self._server = server
        self._timing = timing
        self._wake_writer = wake_writer
        self._grants = StreamGrants()
        self._held: dict[str, int] = {}
        self._beat_number = 0
        self._beat_in_flight = False
        # The time at which the unanswered beat came, or at which the holder was last told that it was heard.
        self._beat_time = 0.0
        self._wants_full = False
        self._out = Outgoing()

    # ── messages of the holder ────────────────────────────────────────────────────────────────────────────

    def receive(self, frame: HolderFrame, now: float) -> ServerEffects:
        match self.state:
            case ServerState.NEW:
                return self._open(frame)
            case ServerState.OPENING:
                return self._fail(StreamFault("ATTACH_PENDING", "wait for the answer to the attach"))
            case ServerState.LIVE | ServerState.DRAINING:
                return self._serve(frame, now)
            case _:  # CLOSED
                return ServerEffects()

    def _open(self, frame: HolderFrame) -> ServerEffects:
        attach = frame.attach
        if attach is None or frame != HolderFrame(attach=attach):
            return self._fail(StreamFault("ATTACH_EXPECTED", "the first frame must hold an attach and nothing else"))
        if fault := fault_in_attach(attach):
            return self._fail(fault)
        self._attach = attach
        self.state = ServerState.OPENING
        return ServerEffects(attach=attach)

    def _serve(self, frame: HolderFrame, now: float) -> ServerEffects:
        if fault := self._fault_in(frame):
            return self._fail(fault)
        effects = ServerEffects(refused=list(frame.refused), reports=list(frame.reports), notes=list(frame.notes))
        if frame.grants_seen > self._grants.seen:
            effects.taken = self._grants.count(frame.grants_seen, frame.refused)
        self.unanswered.add(frame.reports)
        credit = frame.credit
        if credit is not None and self.state is ServerState.LIVE:
            effects.has_stated_credit = self._grants.state_credit(credit.number, credit.amount, frame.grants_seen)
            self._wake_writer()
        if frame.beat is not None:
            self._hear(frame.beat, now)
            effects.beat = frame.beat.number
        if frame.is_draining and self.state is ServerState.LIVE:
            self.state = ServerState.DRAINING
            effects.has_begun_drain = True
        return effects

    def _fault_in(self, frame: HolderFrame) -> StreamFault | None:
        """The whole frame is checked before any part takes effect, so that a faulty frame has no effect."""
        if frame.attach is not None:
            return StreamFault("ATTACHED_ALREADY", "a session attaches once; open another stream")
        # 0 is no count: a frame that only carries reports need not have one.
        grants = self._grants
        if frame.grants_seen and not grants.seen <= frame.grants_seen <= grants.sent:
            message = f"{frame.grants_seen} is not within {grants.seen} and {grants.sent}"
            return StreamFault("GRANTS_SEEN_INVALID", message)
        if self.unanswered.count + len(frame.reports) > REPORTS_FLOOD:
            return StreamFault("FLOOD", f"more than {REPORTS_FLOOD} reports without an answer")
        if has_long_name(frame):
            return StreamFault("NAME_TOO_LONG", f"ids and reasons have at most {NAME_MAX} characters")
        if frame.credit is not None and not 0 <= frame.credit.amount <= CREDIT_MAX:
            return StreamFault("CREDIT_INVALID", f"a credit is 0 to {CREDIT_MAX}")
        if frame.beat is not None:
            return self._fault_in_beat(frame.beat)
        return None

    def _fault_in_beat(self, beat: Beat) -> StreamFault | None:
        if self._beat_in_flight or beat.number != self._beat_number + 1:
            return StreamFault(
                "BEAT_OUT_OF_ORDER", f"expected beat {self._beat_number + 1}, after the answer to the last"
            )
        if len(beat.held) + (0 if beat.is_full else len(self._held)) > HELD_MAX:
            return TOO_MANY_HELD
        return None

    def _hear(self, beat: Beat, now: float) -> None:
        self._beat_number = beat.number
        self._beat_in_flight = True
        self._beat_time = now
        if beat.is_full:
            self._held = dict(beat.held)
        else:
            self._held.update(beat.held)
            for lease_id in beat.gone:
                self._held.pop(lease_id, None)
        # Only a bug of the holder makes the two sets differ. A full beat repairs it.
        self._wants_full = len(self._held) != beat.held_count

    # ── decisions of the server ───────────────────────────────────────────────────────────────────────────

    def accept(self, refused: Sequence[Refused]) -> None:
        """Answer an attach: the instance is open. Nothing happens when the stream has closed meanwhile."""
        if self.state is ServerState.CLOSED:
            return
        if self.state is not ServerState.OPENING:
            raise ValueError(f"nothing to accept in state {self.state.name}")
        self.state = ServerState.LIVE
        gone = {each.lease_id for each in refused}
        self._held = {lease_id: epoch for lease_id, epoch in self.attach.held if lease_id not in gone}
        self._attach = replace(self.attach, held=())
        self._out.attached = Attached(self.session_id, self._server, self._timing, list(refused))
        self._wake_writer()

    def close(self, reason: str, message: str) -> None:
        """End the stream with a fault. Its instance ends too, unless a replica has heard it since."""
        if self.state is not ServerState.CLOSED:
            self._fail(StreamFault(reason, message))

    def renewed(self, number: int) -> None:
        """Answer a beat: the renewal is committed."""
        if self.state is not ServerState.CLOSED and self._beat_in_flight and number == self._beat_number:
            self._beat_in_flight = False
            self._out.beat = BeatAnswer(number, True, self._wants_full)
            self._wake_writer()

    def ended(self) -> None:
        """The instance is ENDED: tell the holder that its renewal is refused."""
        if self.state is not ServerState.CLOSED:
            self._out.beat = BeatAnswer(self._beat_number, False)
            self._fail(INSTANCE_ENDED)

    @property
    def attach(self) -> Attach:
        """The attach. It has no leases once it is accepted or refused: for those ask `holds`."""
        assert self._attach is not None, "the holder has not attached yet"
        return self._attach

    @property
    def is_serving(self) -> bool:
        return self.state is ServerState.LIVE or self.state is ServerState.DRAINING

    @property
    def credit(self) -> int:
        """How many leases may be granted to it now."""
        return max(0, self._grants.credit) if self.state is ServerState.LIVE else 0

    def holds(self, lease_id: str, epoch: int) -> bool:
        """True when the newest attach or beat named the lease, whichever server granted it."""
        return self._held.get(lease_id) == epoch

    @property
    def held(self) -> list[Lease]:
        """The leases that the newest attach or beat named."""
        return [Lease(*each) for each in self._held.items()]

    @property
    def held_count(self) -> int:
        """The number of leases that the session remembers, with those of an attach that is not answered yet."""
        return len(self._held) + (len(self._attach.held) if self._attach is not None else 0)

    @property
    def beat_number(self) -> int:
        """The number of the newest beat that was heard."""
        return self._beat_number

    @property
    def promised(self) -> int:
        """How many grants may still be sent."""
        return self._grants.promised

    def take_credit(self, wanted: int) -> int:
        """Reserve up to `wanted` places for a claim. Each must then be used by a grant or given back."""
        return self._grants.reserve(wanted) if self.state is ServerState.LIVE else 0

    def give_back(self, count: int) -> None:
        self._grants.give_back(count)
        # The confirmation of a credit may have waited for this.
        self._wake_writer()

    def queue_grants(self, grants: Sequence[Grant], now: float) -> bool:
        """Queue grants on reserved places. False: none will be sent, so the work must go elsewhere."""
        self._grants.give_back(len(grants))
        if self.state is not ServerState.LIVE:
            return False
        self._grants.queue(grants, now)
        self._wake_writer()
        return True

    def acknowledge(self, report_ids: Sequence[str]) -> None:
        """Call this after the commit that holds the reports. Only a draining holder waits for the answer."""
        self.unanswered.answer(report_ids)
        self._out.taken.extend(report_ids)
        self._bound_outgoing()
        if self.state is ServerState.DRAINING:
            self._wake_writer()

    def refuse_reports(self, refused: Sequence[RefusedReport]) -> None:
        """Call this after the commit that records the refusal."""
        self.unanswered.answer([each.report_id for each in refused])
        self._out.refused_reports.extend(refused)
        self._added()

    def revoke(self, revoked: Iterable[Refused]) -> None:
        self._out.revoked.extend(revoked)
        self._added()

    def claim(self, leases: Iterable[Lease]) -> None:
        """Take over leases: they are served here from now on. The holder refuses the others as NOT_HELD."""
        self._out.claims.extend(leases)
        self._added()

    def post(self, notes: Iterable[object]) -> None:
        self._out.notes.extend(notes)
        self._added()

    def set_demand(self, demand: int) -> None:
        """State how much work waits for credit.

        The holder is told at once when demand starts, stops or doubles, and else with the next beat.
        """
        said = self._out.demand_said
        self._out.demand_newest = demand
        if said is None or (demand > 0) != (said > 0) or demand > 2 * said:
            self.say_something()

    def say_something(self) -> None:
        """Send the demand, be it only as a sign of life while the stream is not read."""
        self._out.owes_demand = True
        self._wake_writer()

    def drain(self) -> None:
        """Ask the holder to use other servers. Its leases stay."""
        self._out.owes_drain = True
        self._wake_writer()

    def _fail(self, fault: StreamFault) -> ServerEffects:
        self.fault = fault
        self._close()
        return ServerEffects()

    def _close(self) -> None:
        self.state = ServerState.CLOSED
        if self._attach is not None and self._attach.held:
            # The attach will not be accepted, so its leases are forgotten.
            self._attach = replace(self._attach, held=())
        self._wake_writer()

    def _added(self) -> None:
        self._bound_outgoing()
        self._wake_writer()

    def _bound_outgoing(self) -> None:
        if self.state is ServerState.CLOSED:
            self._out.forget_items()
        elif len(self._out) > OUTGOING_MAX:
            message = f"more than {OUTGOING_MAX} items wait for a holder that does not read them"
            self._fail(StreamFault("NOT_READING", message))

    # ── time, writing, end ────────────────────────────────────────────────────────────────────────────────

    def tick(self, now: float) -> list[Grant]:
        """Withdraw the grants that could not be sent in time, and return them. Call this a few times per beat."""
        if self.state is ServerState.CLOSED:
            return []
        if self._beat_in_flight and now - self._beat_time > self._timing.beat / 2:
            # This is repeated while the database is away, because it is the stream's sign of life.
            self._beat_time = now
            self._out.beat_heard = self._beat_number
            self._wake_writer()
        return self._grants.withdraw(now - self._timing.grant_answer)

    def lost(self) -> LostGrants:
        """The stream is gone, perhaps after a fault. Returns its grants that were never counted."""
        self._close()
        self._held = {}
        self._out = Outgoing()
        return self._grants.lose()

    def take_frame(self, items_max: int = FRAME_ITEMS_MAX) -> ServerFrame | None:
        """All that is to be sent to the holder now, at most `items_max` items. None: nothing is."""
        if self.state is ServerState.CLOSED:
            return self._take_last_frame()
        if self.state is ServerState.NEW or self.state is ServerState.OPENING:
            return None
        grants = self._grants.send(items_max)
        frame = self._out.take(grants, items_max - len(grants), has_unsent_grants=self._grants.has_unsent)
        frame.credit_seen = self._grants.take_confirmation()
        return None if frame == _NOTHING else frame

    def _take_last_frame(self) -> ServerFrame | None:
        if self.fault is None or self._out.is_last_taken:
            return None
        self._out.is_last_taken = True
        return ServerFrame(beat=self._out.beat, fault=self.fault)


_NOTHING = ServerFrame()
