"""The turn: all that has gathered goes into one transaction, and the next turn begins when it is committed.

One loop per replica, no fixed batch: on an idle system a turn holds one item, under load hundreds; while they come
fast, turns keep a little distance (`Pace`). What is promised to anybody (a start acknowledged, a grant sent, a report
taken) is said after the commit.

    gather ──► reserve credit ──► one transaction ──► answer, grant, give back
       ▲                                                   │
       └──────── newcomers, reports, credit, lanes ◄───────┘

Credit is reserved at the holders' sessions before the transaction, so that a claim never takes what nobody has room
for; what it did not use is given back after.

That an execution has finished frees a slot, which nobody wants while nothing waits: then it goes with the next turn,
or has one of its own a moment later.

Hazards: when the outcome of a commit is unknown, the same items are put in again: every statement of a turn is safe to
repeat (store/queue.py). A turn that the database refuses for what it holds is split until the item or the lane at fault
stands alone: a start is rejected, a report is kept and tried again (aside.py), the lane is left alone for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from services.chassis.backoff import Backoff
from services.chassis.batcher import Level
from services.chassis.clock import Clock
from services.chassis.company import Company, Pace
from services.chassis.crash import crash_point
from services.chassis.errors import DependencyUnavailable
from services.chassis.logs import logger
from services.dispatcher.core.items import Admission, Finished, Limits, Newcomer, Outcome, Parked, Place
from services.dispatcher.core.lanes import ASIDE_SECONDS, Lanes
from services.dispatcher.core.mail import CLAIM_BYTES_MAX
from services.dispatcher.core.seats import seat_order, shares
from services.dispatcher.core.turn import Turn, TurnResult
from services.dispatcher.handler.aside import ReportsAside
from services.dispatcher.handler.ports import Arrival, Holder, Late, Queue, Told, Unstorable
from services.dispatcher.handler.tally import Tally

log = logger(__name__)

NEWCOMERS_PER_TURN: Final = 500
REPORTS_PER_TURN: Final = 1_000
PLACES_PER_TURN: Final = 500
ENDING_PER_TURN: Final = 20
LANES_PER_TURN: Final = 100
# What a lane that lacks nothing but credit counts for when holders divide theirs: as much as it could take at once.
DEMAND_PER_LANE: Final = 100
# Inputs are up to 256 KiB each: a turn of many large ones would hold its locks for long.
TURN_BYTES_MAX: Final = 8 * 1024 * 1024
# What waits for a turn; beyond it, whoever brings more is made to wait.
NEWCOMERS_WAITING_MAX: Final = 20_000


class Reserved(NamedTuple):
    holder: Holder
    room: int


class Dispatcher:
    def __init__(
        self,
        *,
        queue: Queue,
        late: Late,
        holders: Callable[[], Sequence[Holder]],
        give_up: Callable[[Sequence[Place]], None],
        due: Callable[[datetime], None],
        demand: Callable[[int], None],
        lanes: Lanes,
        tally: Tally,
        clock: Clock,
        poll_seconds: float,
    ) -> None:
        """`holders`: those with credit, most first. `give_up` takes places whose holder's stream is gone; `due` is told
        when something will have to be woken, `demand` how much waits for credit.
        """
        self._queue = queue
        self._late = late
        self._holders = holders
        self._give_up = give_up
        self._due = due
        self._demand = demand
        self._lanes = lanes
        self._tally = tally
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._arrivals: deque[Arrival] = deque()
        self._told: deque[Told] = deque()
        self._aside = ReportsAside()
        # Whether what was told is worth a turn by itself.
        self._is_due = False
        self._company = Company(self._reports_due)
        self._pace = Pace(clock)
        self._has_ending = False
        # Until when nothing is claimed to be ended, since the database refused it.
        self._ending_aside_until = 0.0
        self._wake = Level()
        self._is_turning = False
        self._has_room = asyncio.Event()
        self._has_room.set()

    # ── what is brought ──────────────────────────────────────────────────────────────────────────────────────────

    async def room(self) -> None:
        """Until more newcomers may be brought."""
        await self._has_room.wait()

    def enqueue(self, arrivals: Sequence[Arrival]) -> None:
        self._arrivals.extend(arrivals)
        if len(self._arrivals) >= NEWCOMERS_WAITING_MAX:
            self._has_room.clear()
        self._wake.set()

    def report(self, told: Sequence[Told]) -> None:
        self._told.extend(told)
        if self._lanes.has_waiting or not all(isinstance(each.report, Finished) for each in told):
            self._reports_due()
        else:
            self._company.wanted()

    def _reports_due(self) -> None:
        self._is_due = bool(self._told)
        self._wake.set()

    def work_in(self, workspace: str) -> None:
        """Something waits there that a turn has not seen."""
        self._lanes.work(workspace)
        self._lanes.slot(workspace)
        self._wake.set()

    def work_elsewhere(self, workspace: str) -> None:
        """Another replica has work there that it cannot place; slots that we know to be in use still are."""
        self._lanes.work(workspace)
        self._wake.set()

    def ending_waits(self) -> None:
        """Something waits that will only be ended."""
        self._has_ending = True
        self._wake.set()

    def polled(self, workspaces: Sequence[str], has_ending: bool) -> None:
        now = self._clock.monotonic()
        self._lanes.polled(workspaces)
        self._lanes.end_aside(now)
        if again := self._aside.due(now):
            self._told.extend(again)
            self._is_due = True
        self._has_ending = self._has_ending or has_ending
        self._wake.set()

    def limits_changed(self, workspace: str, limits: Limits) -> None:
        """The database holds them."""
        self._lanes.limits_stored(workspace, limits.revision, limits.queued_max)
        self.work_in(workspace)

    async def idle(self) -> None:
        """Until all that was brought is committed and answered."""
        while self._arrivals or self._told or self._is_turning:
            await self._clock.sleep(0.01)

    def credit_came(self) -> None:
        if self._lanes.has_ready or self._is_ending_ready:
            self._wake.set()

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        backoff = Backoff()
        while True:
            await self._wake.wait(self._poll_seconds)
            while self.has_work:
                try:
                    await self._pace.begin()
                    await self.run_once()
                    backoff.reset()
                except DependencyUnavailable as failure:
                    log.warning("a turn waits for the database", error=str(failure))
                    await self._clock.sleep(backoff.next())

    @property
    def has_work(self) -> bool:
        """Whether a turn could do something now."""
        if self._arrivals or (self._told and self._is_due):
            return True
        return (self._lanes.has_ready or self._is_ending_ready) and bool(self._holders())

    @property
    def _is_ending_ready(self) -> bool:
        return self._has_ending and self._clock.monotonic() >= self._ending_aside_until

    async def run_once(self) -> None:
        """One turn of what is here now. Raises DependencyUnavailable with everything kept for the next."""
        self._is_turning = True
        try:
            await self._run_turn()
        finally:
            self._is_turning = False

    async def _run_turn(self) -> None:
        arrivals, told = self._gather()
        reserved: list[Reserved] = []
        try:
            await self._store_new_limits(arrivals)
            reserved = self._reserve(len(arrivals))
            turn = self._compose(arrivals, told, reserved)
            began = time.perf_counter()
            result = await self._commit(turn)
        except DependencyUnavailable:
            self._arrivals.extendleft(reversed(arrivals))
            self._told.extendleft(reversed(told))
            self._is_due = bool(self._told)
            for holder, room in reserved:
                holder.give_back(room)
            raise
        self._tally.turn(turn, time.perf_counter() - began)
        self._learn(turn, result)
        self._hand_out(result.places, reserved)
        for arrival, admission in zip(arrivals, result.admissions, strict=True):
            arrival.asker.answered(arrival.newcomer, admission)
        self._demand(self._lanes.ready_count * DEMAND_PER_LANE)
        await self._answer_reports(told, turn, result)
        self._pace.carried(len(arrivals) + len(told))

    def _gather(self) -> tuple[list[Arrival], list[Told]]:
        told = [self._told.popleft() for _ in range(min(len(self._told), REPORTS_PER_TURN))]
        self._is_due = bool(self._told)
        arrivals: list[Arrival] = []
        # Two items under one key cannot be judged in one statement: the second waits for the next turn.
        keys: set[tuple[str, str]] = set()
        size = 0
        while self._arrivals and len(arrivals) < NEWCOMERS_PER_TURN and size < TURN_BYTES_MAX:
            newcomer = self._arrivals[0].newcomer
            own = {("", newcomer.execution_id)}
            if newcomer.request_id:
                own.add((newcomer.workspace, newcomer.request_id))
            if not keys.isdisjoint(own):
                break
            keys |= own
            size += len(newcomer.start)
            arrivals.append(self._arrivals.popleft())
        if len(self._arrivals) < NEWCOMERS_WAITING_MAX:
            self._has_room.set()
        if len(arrivals) > 1:
            # Inside a lane seats are given in this order; the sort keeps what came first in front.
            arrivals.sort(key=lambda arrival: -arrival.newcomer.priority)
        return arrivals, told

    async def _store_new_limits(self, arrivals: Sequence[Arrival]) -> None:
        wanted: dict[str, Limits] = {}
        for arrival in arrivals:
            workspace, limits = arrival.newcomer.workspace, arrival.newcomer.limits
            if self._lanes.knows_limits(workspace, limits.revision):
                continue
            if workspace not in wanted or wanted[workspace].revision < limits.revision:
                wanted[workspace] = limits
        if not wanted:
            return
        try:
            await self._queue.store_limits(wanted)
        except Unstorable as failure:
            # Whoever has no limits is answered REJECTED by the turn.
            log.error("limits cannot be stored", workspaces=list(wanted), error=str(failure))
            return
        for workspace, limits in wanted.items():
            self._lanes.limits_stored(workspace, limits.revision, limits.queued_max)

    def _reserve(self, newcomers: int) -> list[Reserved]:
        wanted = newcomers
        if self._lanes.has_ready:
            wanted += PLACES_PER_TURN
        if self._is_ending_ready:
            wanted += ENDING_PER_TURN
        holders = self._holders() if wanted else ()
        reserved: list[Reserved] = []
        for holder, share in zip(holders, shares([each.credit for each in holders], wanted), strict=True):
            count = holder.take_credit(share)
            if count:
                reserved.append(Reserved(holder, count))
        return reserved

    def _compose(
        self, arrivals: Sequence[Arrival], told: Sequence[Told], reserved: Sequence[Reserved]
    ) -> Turn:
        seats = seat_order([each.room for each in reserved])
        ending = seats[:ENDING_PER_TURN] if self._is_ending_ready else []
        left = len(seats) - len(ending)
        # Newcomers go ahead with at most half while others wait; a claim that follows sees them all the same.
        direct = left if not self._lanes.has_ready else left // 2
        newcomers = [arrival.newcomer for arrival in arrivals]
        newcomer_seats, used = self._seats_of(newcomers, seats[len(ending) : len(ending) + direct])
        lane_seats = seats[len(ending) + used :][:PLACES_PER_TURN]
        lanes = self._lanes.take(LANES_PER_TURN) if lane_seats else []
        finished = sorted([each.report for each in told if isinstance(each.report, Finished)])
        parked = sorted([each.report for each in told if isinstance(each.report, Parked)], key=_by_id)
        return Turn(
            now=self._clock.now(),
            newcomers=newcomers,
            newcomer_seats=newcomer_seats,
            waiting=self._waiting(newcomers),
            finished=finished,
            parked=parked,
            lanes=lanes,
            lane_seats=lane_seats if lanes else (),
            ending_seats=ending,
            holders=[each.holder.instance_id for each in reserved],
        )

    def _seats_of(self, newcomers: Sequence[Newcomer], offered: Sequence[int]) -> tuple[list[int], int]:
        """A seat for each that may go ahead at once; how many of the offered were used."""
        seats: list[int] = []
        used = 0
        for newcomer in newcomers:
            if used < len(offered) and self._lanes.takes_newcomers(newcomer.workspace):
                seats.append(offered[used])
                used += 1
            else:
                seats.append(-1)
        return seats, used

    def _waiting(self, newcomers: Sequence[Newcomer]) -> dict[str, int]:
        now = self._clock.monotonic()
        arriving: dict[str, int] = {}
        for newcomer in newcomers:
            arriving[newcomer.workspace] = arriving.get(newcomer.workspace, 0) + 1
        known = {name: self._lanes.waiting(name, count, now) for name, count in arriving.items()}
        return {name: count for name, count in known.items() if count is not None}

    async def _commit(self, turn: Turn) -> TurnResult:
        if turn.is_empty:
            return TurnResult()
        try:
            return await self._queue.turn(turn)
        except Unstorable as failure:
            if turn.items <= 1 and not turn.has_claims:
                return _reject(turn, failure)
        if turn.has_claims:
            result = await self._commit(turn.without_claims())
            result.join(await self._claim_apart(turn))
            return result
        first, second = turn.halves()
        result = await self._commit(first)
        result.join(await self._commit(second))
        return result

    async def _claim_apart(self, turn: Turn) -> TurnResult:
        """Each lane by itself, with the seats that those before it have left."""
        result = TurnResult()
        seats = list(turn.lane_seats)
        for lane in turn.lanes:
            try:
                claimed = await self._queue.turn(turn.claim_of(lane, seats))
            except Unstorable as failure:
                log.error("nothing can be claimed from a workspace", workspace=lane, error=str(failure))
                result.refused_lanes.append(lane)
                continue
            for place in claimed.places:
                seats.remove(place.seat)
            result.join(claimed)
        if turn.ending_seats:
            try:
                result.join(await self._queue.turn(turn.claim_of_ending()))
            except Unstorable as failure:
                log.error("nothing can be claimed to be ended", error=str(failure))
                result.is_ending_refused = True
        return result

    # ── after the commit ─────────────────────────────────────────────────────────────────────────────────────────

    def _learn(self, turn: Turn, result: TurnResult) -> None:
        now = self._clock.monotonic()
        if turn.ending_seats:
            granted = [place for place in result.places if place.is_ends_only]
            # A look that was cut short by the seats, or by what lay in the mailboxes, may have left something.
            carried = sum(len(body) for place in granted for body in place.messages)
            is_cut = len(granted) == len(turn.ending_seats) or carried >= CLAIM_BYTES_MAX
            self._has_ending = is_cut or result.is_ending_refused
        if result.is_ending_refused:
            self._ending_aside_until = now + ASIDE_SECONDS
        for lane in result.refused_lanes:
            self._lanes.set_aside(lane, now)
        for view in result.lanes:
            if self._lanes.saw(view, now):
                self._tally.at_capacity(view)
            if view.has_more:
                self._tally.waits(view.workspace)
        self._forget_unknown(turn, result)
        for workspace in (*result.finished, *result.parked):
            if workspace is not None:
                self._lanes.slot(workspace)
        for workspace in result.woken:
            self._lanes.work(workspace)
        for parked in turn.parked:
            if parked.wake_time is not None:
                self._due(parked.wake_time)
        for newcomer, admission in zip(turn.newcomers, result.admissions, strict=True):
            if admission.outcome is Outcome.QUEUED and newcomer.deadline_time is not None:
                self._due(newcomer.deadline_time)

    def _forget_unknown(self, turn: Turn, result: TurnResult) -> None:
        """A lane that has no row of limits would be looked at again and again."""
        seen = {view.workspace for view in result.lanes}.union(result.refused_lanes)
        for workspace in turn.lanes:
            if workspace not in seen:
                self._lanes.is_unknown(workspace)
                log.warning("workspace not found", workspace=workspace)

    def _hand_out(self, places: Sequence[Place], reserved: Sequence[Reserved]) -> None:
        by_seat: list[list[Place]] = [[] for _ in reserved]
        for place in places:
            by_seat[place.seat].append(place)
        for (holder, room), granted in zip(reserved, by_seat, strict=True):
            if room > len(granted):
                holder.give_back(room - len(granted))
            if granted:
                crash_point("dispatcher.grant.before_send")
                if not holder.grant(granted):
                    self._give_up(granted)
                crash_point("dispatcher.grant.after_send")
        self._tally.granted(places)

    async def _answer_reports(self, told: Sequence[Told], turn: Turn, result: TurnResult) -> None:
        if not told:
            return
        reports: Sequence[Finished | Parked] = (*turn.finished, *turn.parked)
        workspaces = (*result.finished, *result.parked)
        took_effect = {
            report for report, workspace in zip(reports, workspaces, strict=True) if workspace is not None
        }
        refused = set(result.refused_reports)
        crash_point("dispatcher.ack.before_send")
        by_holder: dict[int, tuple[Holder, list[str]]] = {}
        late: list[Told] = []
        for each in told:
            if each.report in took_effect:
                by_holder.setdefault(id(each.holder), (each.holder, []))[1].append(each.report_id)
            elif each.report in refused:
                self._aside.keep(each, self._clock.monotonic())
            else:
                late.append(each)
        for holder, report_ids in by_holder.values():
            holder.acknowledge(report_ids)
        crash_point("dispatcher.ack.after_send")
        if late:
            await self._answer_late(late)

    async def _answer_late(self, late: Sequence[Told]) -> None:
        """Off the hot path: find out why nothing happened."""
        try:
            reasons = await self._late.reasons([each.report for each in late])
        except DependencyUnavailable:
            # A moment later: at once would be as fast as the machine goes, until the database is back.
            self._told.extend(late)
            self._company.wanted()
            return
        for told, reason in zip(late, reasons, strict=True):
            if reason is None:
                told.holder.acknowledge([told.report_id])
            else:
                told.holder.refuse(told.report_id, reason)
                self._tally.late(told.report, told.holder.instance_id, reason)


def _by_id(report: Parked) -> tuple[str, int]:
    return report.execution_id, report.epoch


def _reject(turn: Turn, failure: Unstorable) -> TurnResult:
    """What becomes of the one item that cannot be stored."""
    items: Sequence[Newcomer | Finished | Parked] = (*turn.newcomers, *turn.finished, *turn.parked)
    for each in items:
        log.error("error processing item", execution_id=each.execution_id, error=str(failure))
    message = "this item cannot be stored"
    return TurnResult(
        admissions=[Admission(Outcome.REJECTED, message=message) for _ in turn.newcomers],
        finished=[None for _ in turn.finished],
        parked=[None for _ in turn.parked],
        refused_reports=[*turn.finished, *turn.parked],
    )
