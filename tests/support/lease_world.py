"""Both sides of the rules meet in a world that loses streams, delays frames, freezes holders and takes the database
away. The promises hold in any order of these.

Two holders, two servers, one database of leases and instances. Frames of one stream keep their order, as on a real one.
Everything else may happen at any time. In the end all faults are mended, and everything must be settled.
"""

import itertools
from collections import Counter, deque
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.chassis.lease.effects import HolderEffects, ServerEffects
from services.chassis.lease.frames import Attach, Grant, HolderFrame, Lease, Refused, RefusedReport, Report, ServerFrame
from services.chassis.lease.grants import LostGrants
from services.chassis.lease.holder import HolderRules
from services.chassis.lease.server import ServerSessionRules
from services.chassis.lease.timing import EXECUTION

CAPACITY = 4
LEASES = [f"lease-{number}" for number in range(8)]
ADDRESSES = ("s0", "s1")

holders = st.integers(0, 1)
servers = st.sampled_from(ADDRESSES)


@dataclass
class Row:
    """One lease in the database."""

    epoch: int = 0
    instance_id: str | None = None
    is_done: bool = False


@dataclass
class Instance:
    heard_at: float
    is_live: bool = True


@dataclass(eq=False)
class Stream:
    """The server's end, and the frames that are under way in both directions."""

    address: str
    rules: ServerSessionRules
    up: deque[HolderFrame] = field(default_factory=deque)
    down: deque[ServerFrame] = field(default_factory=deque)
    # The time at which each beat (0: the attach) was sent, by the machine's own account.
    sent_at: dict[int, float] = field(default_factory=dict)
    instance_id: str = ""


@dataclass(eq=False)
class Holder:
    rules: HolderRules
    streams: dict[str, Stream] = field(default_factory=dict)
    is_frozen: bool = False
    started: set[tuple[str, int]] = field(default_factory=set)
    answered: Counter[str] = field(default_factory=Counter)
    reported: set[str] = field(default_factory=set)
    alive_at: float | None = None
    reports_made: int = 0


class LeaseWorld(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.is_away = False
        self.rows = {name: Row() for name in LEASES}
        self.instances: dict[str, Instance] = {}
        self.epochs = itertools.count(1)
        self.ids = itertools.count(1)
        self.holders: list[Holder] = []
        # The servers have not noticed that these streams are gone.
        self.ghosts: list[Stream] = []
        self.claims: list[tuple[Stream, int]] = []
        self.waiting: list[tuple[Stream, int]] = []
        self.doubts: dict[tuple[str, str], list[Grant]] = {}
        # The work of these leases was given to others, because their holder will never begin them.
        self.freed: set[tuple[str, int]] = set()
        self.starts: Counter[tuple[str, int]] = Counter()
        self.results: Counter[str] = Counter()

    @initialize()
    def begin(self) -> None:
        for number in range(2):
            attach = Attach(f"holder-{number}", capacity=CAPACITY)
            rules = HolderRules(attach, EXECUTION, lambda: f"instance-{next(self.ids)}")
            self.holders.append(Holder(rules))
        self.settle()

    # ── streams ──────────────────────────────────────────────────────────────────────────────────────────────

    @rule(h=holders, s=servers)
    def dial(self, h: int, s: str) -> None:
        holder = self.holders[h]
        if s in holder.streams or holder.is_frozen:
            return
        holder.rules.dialled(s, self.now)
        holder.streams[s] = Stream(s, ServerSessionRules("session", s, EXECUTION))

    @rule(h=holders, s=servers, items=st.sampled_from([1, 2, 500]))
    def holder_writes(self, h: int, s: str, items: int) -> None:
        holder = self.holders[h]
        stream = holder.streams.get(s)
        if stream is None or holder.is_frozen:
            return
        frame = holder.rules.take_frame(s, self.now, items)
        if frame is None:
            return
        assert len(frame.reports) <= items
        assert all(each.reason != "NO_CAPACITY" for each in frame.refused), "a server exceeded its credit"
        if frame.attach is not None:
            stream.sent_at[0] = self.now
            stream.instance_id = frame.attach.instance_id
        if frame.beat is not None:
            stream.sent_at[frame.beat.number] = self.now
        stream.up.append(frame)

    @rule(h=holders, s=servers)
    def server_reads(self, h: int, s: str) -> None:
        stream = self.holders[h].streams.get(s)
        if stream is not None and stream.up:
            self.serve(stream, stream.rules.receive(stream.up.popleft(), self.now))

    @rule(h=holders, s=servers, items=st.sampled_from([1, 2, 500]))
    def server_writes(self, h: int, s: str, items: int) -> None:
        stream = self.holders[h].streams.get(s)
        if stream is not None and (frame := stream.rules.take_frame(items)) is not None:
            assert len(frame.grants) + len(frame.taken) + len(frame.revoked) <= items
            stream.down.append(frame)

    @rule(h=holders, s=servers)
    def holder_reads(self, h: int, s: str) -> None:
        holder = self.holders[h]
        stream = holder.streams.get(s)
        if stream is None or not stream.down or holder.is_frozen:
            return
        frame = stream.down.popleft()
        answered = 0 if frame.attached else frame.beat.number if frame.beat and frame.beat.is_renewed else None
        if answered is not None and stream.instance_id == holder.rules.instance_id:
            sent_at = stream.sent_at[answered]
            holder.alive_at = sent_at if holder.alive_at is None else max(holder.alive_at, sent_at)
        self.hear(holder, holder.rules.receive(s, frame, self.now))

    @rule(h=holders, s=servers, parts=st.lists(st.integers(0, 3), min_size=1, max_size=8))
    def they_talk(self, h: int, s: str, parts: list[int]) -> None:
        """Take several steps of one stream, so that frames get through often enough to matter."""
        self.dial(h, s)
        for part in parts:
            if part == 0:
                self.holder_writes(h, s, 500)
            elif part == 1:
                self.server_reads(h, s)
            elif part == 2:
                self.server_writes(h, s, 500)
            else:
                self.holder_reads(h, s)

    @rule(h=holders, s=servers)
    def they_say_all(self, h: int, s: str) -> None:
        for _ in range(3):
            self.they_talk(h, s, [0, 1, 2, 3])

    @rule(h=holders, s=servers, is_noticed=st.booleans())
    def cut(self, h: int, s: str, is_noticed: bool) -> None:
        self.lose(self.holders[h], s, is_noticed)

    @precondition(lambda self: self.ghosts)
    @rule()
    def server_notices(self) -> None:
        stream = self.ghosts.pop(0)
        self.close(stream, stream.rules.lost())

    def lose(self, holder: Holder, s: str, is_noticed: bool = True) -> None:
        stream = holder.streams.pop(s, None)
        if stream is None:
            return
        holder.rules.lost(s)
        if is_noticed:
            self.close(stream, stream.rules.lost())
        else:
            self.ghosts.append(stream)

    # ── the hop's work ───────────────────────────────────────────────────────────────────────────────────────

    @rule(h=holders, s=servers, wanted=st.integers(1, 5))
    def server_begins_a_claim(self, h: int, s: str, wanted: int) -> None:
        stream = self.holders[h].streams.get(s)
        if stream is not None and (count := stream.rules.take_credit(wanted)):
            self.claims.append((stream, count))

    @precondition(lambda self: self.claims and not self.is_away)
    @rule()
    def claim_commits(self) -> None:
        stream, count = self.claims.pop(0)
        instance = self.instances.get(stream.instance_id)
        free = [name for name, row in self.rows.items() if row.instance_id is None and not row.is_done]
        if instance is None or not instance.is_live:
            free = []
        grants = []
        for name in free[:count]:
            row = self.rows[name]
            row.epoch, row.instance_id = next(self.epochs), stream.instance_id
            grants.append(Grant(name, row.epoch, None))
        stream.rules.give_back(count - len(grants))
        if not stream.rules.queue_grants(grants, self.now):
            self.free(grants)

    @precondition(lambda self: not self.is_away)
    @rule(h=holders, s=servers, wanted=st.integers(1, 5), is_heard=st.booleans())
    def server_grants(self, h: int, s: str, wanted: int, is_heard: bool) -> None:
        self.server_begins_a_claim(h, s, wanted)
        while self.claims:
            self.claim_commits()
        self.server_writes(h, s, 500)
        if is_heard:
            self.holder_reads(h, s)

    @rule(h=holders, pick=st.integers(0, 100))
    def holder_starts(self, h: int, pick: int) -> None:
        holder = self.holders[h]
        ready = [item for item in holder.rules.leases.items() if item not in holder.started]
        if not ready or holder.is_frozen or not holder.rules.may_start(self.now):
            return
        assert holder.alive_at is not None
        assert self.now - holder.alive_at < EXECUTION.self_fence, "started after the self-fence"
        item = ready[pick % len(ready)]
        holder.started.add(item)
        self.starts[item] += 1
        assert self.starts[item] == 1, "the same grant was started twice"
        assert item not in self.freed, "started although the work was given to another"

    @rule(h=holders, pick=st.integers(0, 100))
    def holder_finishes(self, h: int, pick: int) -> None:
        holder = self.holders[h]
        running = [
            (name, epoch)
            for name, epoch in sorted(holder.started)
            if (held := holder.rules.held.get(name)) and held.epoch == epoch and held.is_active
        ]
        if running and not holder.is_frozen:
            self.finish(holder, *running[pick % len(running)])

    def finish(self, holder: Holder, name: str, epoch: int) -> None:
        holder.reports_made += 1
        report_id = f"{holder.reports_made}"
        holder.reported.add(report_id)
        holder.rules.report(Report(report_id, name, epoch, None), ends_lease=True)

    @rule(h=holders, pick=st.integers(0, 100))
    def holder_hands_back(self, h: int, pick: int) -> None:
        holder = self.holders[h]
        ready = [item for item in holder.rules.leases.items() if item not in holder.started]
        if ready and not holder.is_frozen:
            holder.rules.refuse(*ready[pick % len(ready)], "UNKNOWN_MODULE")

    @rule(h=holders, s=servers, name=st.sampled_from(LEASES))
    def server_revokes(self, h: int, s: str, name: str) -> None:
        """A run is cancelled: its lease is free before its holder hears of it."""
        stream, row = self.holders[h].streams.get(s), self.rows[name]
        if stream is None or self.is_away or row.instance_id is None or row.instance_id != stream.instance_id:
            return
        row.instance_id = None
        stream.rules.revoke([Refused(name, row.epoch, "RUN_CANCELLED")])

    @rule(h=holders, s=servers, name=st.sampled_from(LEASES))
    def server_takes_over(self, h: int, s: str, name: str) -> None:
        """Another server grants or has granted the lease. This one asks for it now."""
        stream, row = self.holders[h].streams.get(s), self.rows[name]
        if stream is not None and row.instance_id is not None and row.instance_id == stream.instance_id:
            stream.rules.claim([Lease(name, row.epoch)])

    @rule(h=holders, s=servers, demand=st.integers(0, 20))
    def server_wants(self, h: int, s: str, demand: int) -> None:
        stream = self.holders[h].streams.get(s)
        if stream is not None:
            stream.rules.set_demand(demand)

    # ── time and misfortune ──────────────────────────────────────────────────────────────────────────────────

    @rule(seconds=st.sampled_from([0.01, 0.5, 2.0, 3.0, 6.5]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for holder in self.holders:
            if not holder.is_frozen:
                self.hear(holder, holder.rules.tick(self.now))
            for stream in list(holder.streams.values()):
                self.free(stream.rules.tick(self.now))

    @rule(h=holders, is_frozen=st.booleans())
    def freeze_or_thaw(self, h: int, is_frozen: bool) -> None:
        self.holders[h].is_frozen = is_frozen

    @rule(is_away=st.booleans())
    def database(self, is_away: bool) -> None:
        self.is_away = is_away
        if not is_away:
            waiting, self.waiting = self.waiting, []
            for stream, number in waiting:
                self.renew(stream, number)

    @precondition(lambda self: not self.is_away)
    @rule()
    def sweep(self) -> None:
        for instance_id, instance in self.instances.items():
            if instance.is_live and self.now - instance.heard_at > EXECUTION.granted_again:
                instance.is_live = False
                for row in self.rows.values():
                    if row.instance_id == instance_id:
                        row.instance_id = None

    # ── the database's part ──────────────────────────────────────────────────────────────────────────────────

    def serve(self, stream: Stream, effects: ServerEffects) -> None:
        self.free([Grant(each.lease_id, each.epoch, None) for each in effects.refused])
        self.commit(stream, effects.reports)
        if effects.beat and self.is_away:
            self.waiting.append((stream, effects.beat))
        elif effects.beat:
            self.renew(stream, effects.beat)
        if effects.attach is not None:
            self.open(stream, effects.attach)

    def close(self, stream: Stream, lost: LostGrants) -> None:
        self.free(lost.withdrawn)
        self.doubts.setdefault((stream.address, stream.instance_id), []).extend(lost.in_doubt)

    def open(self, stream: Stream, attach: Attach) -> None:
        if self.is_away:
            stream.rules.close("DATABASE_AWAY", "")
            return
        # The server knows by now that its older stream with this instance is dead.
        for ghost in [each for each in self.ghosts if each.instance_id == attach.instance_id]:
            if ghost.address == stream.address:
                self.ghosts.remove(ghost)
                self.close(ghost, ghost.rules.lost())
        instance = self.instances.setdefault(attach.instance_id, Instance(self.now))
        if not instance.is_live:
            stream.rules.close("INSTANCE_ENDED", "")
            return
        instance.heard_at = self.now
        refused = [
            Refused(name, epoch, "EPOCH_STALE")
            for name, epoch in attach.held
            if (self.rows[name].epoch, self.rows[name].instance_id) != (epoch, attach.instance_id)
        ]
        stream.rules.accept(refused)
        doubts = self.doubts.pop((stream.address, attach.instance_id), [])
        self.free([each for each in doubts if not stream.rules.holds(each.lease_id, each.epoch)])
        # It should hold these leases and did not name them: they were handed back on a stream that broke, or their
        # reports are on the way through another server. Its answer to a claim is binding.
        stream.rules.claim(
            Lease(name, row.epoch)
            for name, row in self.rows.items()
            if row.instance_id == attach.instance_id and not stream.rules.holds(name, row.epoch)
        )

    def renew(self, stream: Stream, number: int) -> None:
        instance = self.instances[stream.instance_id]
        if instance.is_live:
            instance.heard_at = self.now
            stream.rules.renewed(number)
        else:
            stream.rules.ended()

    def commit(self, stream: Stream, reports: list[Report]) -> None:
        for report in reports:
            row = self.rows[report.lease_id]
            if row.epoch == report.epoch and (row.is_done or row.instance_id is not None):
                if not row.is_done:
                    self.results[report.lease_id] += 1
                row.is_done, row.instance_id = True, None
                stream.rules.acknowledge([report.report_id])
            else:
                stream.rules.refuse_reports([RefusedReport(report.report_id, "EPOCH_STALE")])

    def free(self, grants: list[Grant]) -> None:
        for name, epoch, _ in grants:
            row = self.rows[name]
            if row.epoch == epoch and row.instance_id is not None:
                assert not self.starts[name, epoch], "work that had begun was given to another"
                row.instance_id = None
                self.freed.add((name, epoch))

    def hear(self, holder: Holder, effects: HolderEffects) -> None:
        holder.answered.update(each.report_id for each in effects.reports_taken)
        holder.answered.update(each.report_id for each, _ in effects.reports_refused)
        for each in (*effects.lost, *effects.revoked):
            assert holder.rules.leases.get(each.lease_id) != each.epoch
        if effects.end_reason:
            holder.alive_at = None
            assert holder.rules.leases == {}
        for address, _ in effects.redials:
            self.lose(holder, address)

    # ── what always holds ────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def no_place_is_promised_twice(self) -> None:
        for holder in self.holders:
            active = sum(held.is_active for held in holder.rules.held.values())
            coming = 0
            for stream in holder.streams.values():
                coming += stream.rules.promised
                coming += sum(len(frame.grants) for frame in stream.down)
            assert active + coming <= CAPACITY

    @invariant()
    def a_lease_has_one_holder(self) -> None:
        for name, row in self.rows.items():
            holding = [h for h in self.holders if h.rules.leases.get(name) == row.epoch]
            assert len(holding) <= 1

    @invariant()
    def a_lease_has_one_result(self) -> None:
        assert all(count <= 1 for count in self.results.values())

    @invariant()
    def no_report_is_answered_twice(self) -> None:
        for holder in self.holders:
            assert all(count == 1 for count in holder.answered.values())

    # ── healed, all is settled ───────────────────────────────────────────────────────────────────────────────

    def teardown(self) -> None:
        self.database(is_away=False)
        for stream, count in self.claims:
            stream.rules.give_back(count)
        self.claims.clear()
        for h, holder in enumerate(self.holders):
            holder.is_frozen = False
            for s in ADDRESSES:
                self.lose(holder, s)
                self.dial(h, s)
        while self.ghosts:
            self.server_notices()
        self.settle()
        for holder in self.holders:
            for name, epoch in holder.rules.leases.items():
                if holder.rules.held[name].is_active:
                    self.finish(holder, name, epoch)
        self.settle()
        for holder in self.holders:
            assert holder.rules.reports_unanswered == 0
            assert set(holder.answered) == holder.reported
            assert holder.rules.leases == {}
        held = {row.instance_id for row in self.rows.values() if row.instance_id is not None}
        assert not held & {holder.rules.instance_id for holder in self.holders}, "leased to who does not know it"

    def settle(self) -> None:
        """Everybody reads and writes until nobody has anything to say."""
        for _ in range(100):
            for h, s in itertools.product(range(len(self.holders)), ADDRESSES):
                self.dial(h, s)
                self.holder_writes(h, s, 500)
                self.server_reads(h, s)
                self.server_writes(h, s, 500)
                self.holder_reads(h, s)
            streams = [stream for holder in self.holders for stream in holder.streams.values()]
            owing = [s for holder in self.holders for s in holder.rules.owing()]
            if not owing and not any(stream.up or stream.down for stream in streams):
                return
        raise AssertionError("they never come to rest")
