"""The batch: all that has gathered goes into one transaction, and the next batch begins when it is committed.

One loop per replica, no fixed batch: on an idle system a batch holds one item, under load hundreds; while they come
fast, batches keep a little distance (`AdaptivePacer`). What is promised to anybody (a start acknowledged, a grant sent,
a report taken) is said after the commit.

    gather ──► reserve credit ──► one transaction ──► answer, grant, give back
       ▲                                                   │
       └──────── new starts, reports, credit, workspaces ◄───────┘

Credit is reserved at the holders' sessions before the transaction, so that a claim never takes what nobody has room
for; what it did not use is given back after.

That an execution has finished frees a slot, which nobody wants while nothing waits: then it goes with the next batch,
or has one of its own a moment later.

Hazards: when the outcome of a commit is unknown, the same items are put in again: every statement of a batch is safe to
repeat (store/queue.py). A batch that the database refuses for what it holds is split until the item or the workspace at
fault stands alone: a start is rejected, a report is kept and tried again (retry_later.py), the workspace is left
alone for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.backoff import Backoff
from services.chassis.process.batcher import Level
from services.chassis.process.clock import Clock
from services.chassis.process.coalescing import AdaptivePacer, Coalescer
from services.chassis.process.crash import crash_point
from services.chassis.telemetry.logs import logger
from services.dispatcher.app.admission_metrics import AdmissionMetrics
from services.dispatcher.app.ports import (
    AdmissionStore,
    Arrival,
    CoordinatorSession,
    LateReasons,
    PendingReport,
    Unstorable,
)
from services.dispatcher.app.retry_later import RetryLater
from services.dispatcher.core.batch import AdmissionBatch, BatchResult
from services.dispatcher.core.holder_shares import holder_order, shares
from services.dispatcher.core.items import (
    Admission,
    Claim,
    EnqueueOutcome,
    LeaseFinished,
    LeaseParked,
    NewStart,
    WorkspaceLimits,
)
from services.dispatcher.core.mailbox_limits import CLAIM_BYTES_MAX
from services.dispatcher.core.workspace_queues import ASIDE_SECONDS, WorkspaceQueues

log = logger(__name__)

NEW_STARTS_PER_BATCH: Final = 500
REPORTS_PER_BATCH: Final = 1_000
CLAIMS_PER_BATCH: Final = 500
ENDING_PER_BATCH: Final = 20
WORKSPACES_PER_BATCH: Final = 100
# What a workspace that lacks nothing but credit counts for when holders divide theirs: as much as it could take at
# once.
DEMAND_PER_WORKSPACE: Final = 100
# Inputs are up to 256 KiB each: a batch of many large ones would hold its locks for long.
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
# What waits for a batch; beyond it, whoever brings more is made to wait.
NEW_STARTS_WAITING_MAX: Final = 20_000


class Reserved(NamedTuple):
    holder: CoordinatorSession
    room: int


class AdmissionLoop:
    def __init__(
        self,
        *,
        store: AdmissionStore,
        late: LateReasons,
        holders: Callable[[], Sequence[CoordinatorSession]],
        give_up: Callable[[Sequence[Claim]], None],
        due: Callable[[datetime], None],
        demand: Callable[[int], None],
        queues: WorkspaceQueues,
        metrics: AdmissionMetrics,
        clock: Clock,
        poll_seconds: float,
    ) -> None:
        """`holders`: those with credit, most first. `give_up` takes claims whose holder's stream is gone. `due` is
        told when something will have to be woken, `demand` how much waits for credit.
        """
        self._store = store
        self._late = late
        self._holders = holders
        self._give_up = give_up
        self._due = due
        self._demand = demand
        self._queues = queues
        self._metrics = metrics
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._arrivals: deque[Arrival] = deque()
        self._pending_reports: deque[PendingReport] = deque()
        self._aside = RetryLater()
        # Whether what was pending is worth a batch by itself.
        self._is_due = False
        self._coalescer = Coalescer(self._reports_due)
        self._pacer = AdaptivePacer(clock)
        self._has_ending = False
        # Until when nothing is claimed to be ended, since the database refused it.
        self._ending_aside_until = 0.0
        self._wake = Level()
        self._is_committing = False
        self._has_room = asyncio.Event()
        self._has_room.set()

    # ── what is brought ──────────────────────────────────────────────────────────────────────────────────────────

    async def room(self) -> None:
        """Until more new starts may be brought."""
        await self._has_room.wait()

    def enqueue(self, arrivals: Sequence[Arrival]) -> None:
        self._arrivals.extend(arrivals)
        if len(self._arrivals) >= NEW_STARTS_WAITING_MAX:
            self._has_room.clear()
        self._wake.set()

    def report(self, pending: Sequence[PendingReport]) -> None:
        self._pending_reports.extend(pending)
        if self._queues.has_waiting or not all(isinstance(each.report, LeaseFinished) for each in pending):
            self._reports_due()
        else:
            self._coalescer.wanted()

    def _reports_due(self) -> None:
        self._is_due = bool(self._pending_reports)
        self._wake.set()

    def work_in(self, workspace: str) -> None:
        """Something waits there that a batch has not seen."""
        self._queues.work(workspace)
        self._queues.slot(workspace)
        self._wake.set()

    def work_elsewhere(self, workspace: str) -> None:
        """Another replica has work there that it cannot place; slots that we know to be in use still are."""
        self._queues.work(workspace)
        self._wake.set()

    def ending_waits(self) -> None:
        """Something waits that will only be ended."""
        self._has_ending = True
        self._wake.set()

    def polled(self, workspaces: Sequence[str], has_ending: bool) -> None:
        now = self._clock.monotonic()
        self._queues.polled(workspaces)
        self._queues.end_aside(now)
        if again := self._aside.due(now):
            self._pending_reports.extend(again)
            self._is_due = True
        self._has_ending = self._has_ending or has_ending
        self._wake.set()

    def limits_changed(self, workspace: str, limits: WorkspaceLimits) -> None:
        """The database holds them."""
        self._queues.limits_stored(workspace, limits.revision, limits.queued_max)
        self.work_in(workspace)

    async def idle(self) -> None:
        """Until all that was brought is committed and answered."""
        while self._arrivals or self._pending_reports or self._is_committing:
            await self._clock.sleep(0.01)

    def credit_came(self) -> None:
        if self._queues.has_ready or self._is_ending_ready:
            self._wake.set()

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        backoff = Backoff()
        while True:
            await self._wake.wait(self._poll_seconds)
            while self.has_work:
                try:
                    await self._pacer.begin()
                    await self.run_once()
                    backoff.reset()
                except DependencyUnavailable as failure:
                    log.warning("a batch waits for the database", error=str(failure))
                    await self._clock.sleep(backoff.next())

    @property
    def has_work(self) -> bool:
        """Whether a batch could do something now."""
        if self._arrivals or (self._pending_reports and self._is_due):
            return True
        return (self._queues.has_ready or self._is_ending_ready) and bool(self._holders())

    @property
    def _is_ending_ready(self) -> bool:
        return self._has_ending and self._clock.monotonic() >= self._ending_aside_until

    async def run_once(self) -> None:
        """One batch of what is here now. Raises DependencyUnavailable with everything kept for the next."""
        self._is_committing = True
        try:
            await self._run_batch()
        finally:
            self._is_committing = False

    async def _run_batch(self) -> None:
        arrivals, pending = self._gather()
        reserved: list[Reserved] = []
        try:
            await self._store_new_limits(arrivals)
            reserved = self._reserve(len(arrivals))
            batch = self._compose(arrivals, pending, reserved)
            began = time.perf_counter()
            result = await self._commit(batch)
        except DependencyUnavailable:
            self._arrivals.extendleft(reversed(arrivals))
            self._pending_reports.extendleft(reversed(pending))
            self._is_due = bool(self._pending_reports)
            for holder, room in reserved:
                holder.give_back(room)
            raise
        self._metrics.committed(batch, time.perf_counter() - began)
        self._learn(batch, result)
        self._hand_out(result.claims, reserved)
        for arrival, admission in zip(arrivals, result.admissions, strict=True):
            arrival.asker.answered(arrival.new_start, admission)
        self._demand(self._queues.ready_count * DEMAND_PER_WORKSPACE)
        await self._answer_reports(pending, batch, result)
        self._pacer.carried(len(arrivals) + len(pending))

    def _gather(self) -> tuple[list[Arrival], list[PendingReport]]:
        pending = [
            self._pending_reports.popleft() for _ in range(min(len(self._pending_reports), REPORTS_PER_BATCH))
        ]
        self._is_due = bool(self._pending_reports)
        arrivals: list[Arrival] = []
        # Two items under one key cannot be judged in one statement: the second waits for the next batch.
        keys: set[tuple[str, str]] = set()
        size = 0
        while self._arrivals and len(arrivals) < NEW_STARTS_PER_BATCH and size < BATCH_BYTES_MAX:
            new_start = self._arrivals[0].new_start
            own = {("", new_start.execution_id)}
            if new_start.request_id:
                own.add((new_start.workspace, new_start.request_id))
            if not keys.isdisjoint(own):
                break
            keys |= own
            size += len(new_start.start)
            arrivals.append(self._arrivals.popleft())
        if len(self._arrivals) < NEW_STARTS_WAITING_MAX:
            self._has_room.set()
        if len(arrivals) > 1:
            # Inside a workspace holders are given in this order; the sort keeps what came first in front.
            arrivals.sort(key=lambda arrival: -arrival.new_start.priority)
        return arrivals, pending

    async def _store_new_limits(self, arrivals: Sequence[Arrival]) -> None:
        wanted: dict[str, WorkspaceLimits] = {}
        for arrival in arrivals:
            workspace, limits = arrival.new_start.workspace, arrival.new_start.limits
            if self._queues.knows_limits(workspace, limits.revision):
                continue
            if workspace not in wanted or wanted[workspace].revision < limits.revision:
                wanted[workspace] = limits
        if not wanted:
            return
        try:
            await self._store.store_limits(wanted)
        except Unstorable as failure:
            # Whoever has no limits is answered REJECTED by the batch.
            log.error("limits cannot be stored", workspaces=list(wanted), error=str(failure))
            return
        for workspace, limits in wanted.items():
            self._queues.limits_stored(workspace, limits.revision, limits.queued_max)

    def _reserve(self, new_starts: int) -> list[Reserved]:
        wanted = new_starts
        if self._queues.has_ready:
            wanted += CLAIMS_PER_BATCH
        if self._is_ending_ready:
            wanted += ENDING_PER_BATCH
        holders = self._holders() if wanted else ()
        reserved: list[Reserved] = []
        for holder, share in zip(holders, shares([each.credit for each in holders], wanted), strict=True):
            count = holder.take_credit(share)
            if count:
                reserved.append(Reserved(holder, count))
        return reserved

    def _compose(
        self, arrivals: Sequence[Arrival], pending: Sequence[PendingReport], reserved: Sequence[Reserved]
    ) -> AdmissionBatch:
        indexes = holder_order([each.room for each in reserved])
        ending = indexes[:ENDING_PER_BATCH] if self._is_ending_ready else []
        left = len(indexes) - len(ending)
        # New starts go ahead with at most half while others wait; a claim that follows sees them all the same.
        direct = left if not self._queues.has_ready else left // 2
        new_starts = [arrival.new_start for arrival in arrivals]
        new_start_holders, used = self._holders_for(new_starts, indexes[len(ending) : len(ending) + direct])
        claim_holders = indexes[len(ending) + used :][:CLAIMS_PER_BATCH]
        workspaces = self._queues.take(WORKSPACES_PER_BATCH) if claim_holders else []
        finished = sorted([each.report for each in pending if isinstance(each.report, LeaseFinished)])
        parked = sorted([each.report for each in pending if isinstance(each.report, LeaseParked)], key=_by_id)
        return AdmissionBatch(
            now=self._clock.now(),
            new_starts=new_starts,
            new_start_holders=new_start_holders,
            waiting=self._waiting(new_starts),
            finished=finished,
            parked=parked,
            workspaces=workspaces,
            claim_holders=claim_holders if workspaces else (),
            ending_holders=ending,
            holders=[each.holder.instance_id for each in reserved],
        )

    def _holders_for(self, new_starts: Sequence[NewStart], offered: Sequence[int]) -> tuple[list[int], int]:
        """A holder for each that may go ahead at once; how many of the offered were used."""
        indexes: list[int] = []
        used = 0
        for new_start in new_starts:
            if used < len(offered) and self._queues.takes_new_starts(new_start.workspace):
                indexes.append(offered[used])
                used += 1
            else:
                indexes.append(-1)
        return indexes, used

    def _waiting(self, new_starts: Sequence[NewStart]) -> dict[str, int]:
        now = self._clock.monotonic()
        arriving: dict[str, int] = {}
        for new_start in new_starts:
            arriving[new_start.workspace] = arriving.get(new_start.workspace, 0) + 1
        known = {name: self._queues.waiting(name, count, now) for name, count in arriving.items()}
        return {name: count for name, count in known.items() if count is not None}

    async def _commit(self, batch: AdmissionBatch) -> BatchResult:
        if batch.is_empty:
            return BatchResult()
        try:
            return await self._store.commit(batch)
        except Unstorable as failure:
            if batch.items <= 1 and not batch.is_claiming:
                return _reject(batch, failure)
        if batch.is_claiming:
            result = await self._commit(batch.without_claims())
            result.join(await self._claim_apart(batch))
            return result
        first, second = batch.halves()
        result = await self._commit(first)
        result.join(await self._commit(second))
        return result

    async def _claim_apart(self, batch: AdmissionBatch) -> BatchResult:
        """Each workspace by itself, with the holders that those before it have left."""
        result = BatchResult()
        indexes = list(batch.claim_holders)
        for workspace in batch.workspaces:
            try:
                claimed = await self._store.commit(batch.claim_of(workspace, indexes))
            except Unstorable as failure:
                log.error("nothing can be claimed from a workspace", workspace=workspace, error=str(failure))
                result.refused_workspaces.append(workspace)
                continue
            for claim in claimed.claims:
                indexes.remove(claim.holder_index)
            result.join(claimed)
        if batch.ending_holders:
            try:
                result.join(await self._store.commit(batch.claim_of_ending()))
            except Unstorable as failure:
                log.error("nothing can be claimed to be ended", error=str(failure))
                result.is_ending_refused = True
        return result

    # ── after the commit ─────────────────────────────────────────────────────────────────────────────────────────

    def _learn(self, batch: AdmissionBatch, result: BatchResult) -> None:
        now = self._clock.monotonic()
        if batch.ending_holders:
            granted = [claim for claim in result.claims if claim.is_ends_only]
            # A look that was cut short by the holders, or by what lay in the mailboxes, may have left something.
            carried = sum(len(body) for claim in granted for body in claim.messages)
            is_cut = len(granted) == len(batch.ending_holders) or carried >= CLAIM_BYTES_MAX
            self._has_ending = is_cut or result.is_ending_refused
        if result.is_ending_refused:
            self._ending_aside_until = now + ASIDE_SECONDS
        for refused in result.refused_workspaces:
            self._queues.set_aside(refused, now)
        for view in result.workspaces:
            if self._queues.saw(view, now):
                self._metrics.at_capacity(view)
            if view.has_more:
                self._metrics.waits(view.workspace)
        self._forget_unknown(batch, result)
        for workspace in (*result.finished, *result.parked):
            if workspace is not None:
                self._queues.slot(workspace)
        for workspace in result.woken:
            self._queues.work(workspace)
        for parked in batch.parked:
            if parked.wake_time is not None:
                self._due(parked.wake_time)
        for new_start, admission in zip(batch.new_starts, result.admissions, strict=True):
            if admission.outcome is EnqueueOutcome.QUEUED and new_start.deadline_time is not None:
                self._due(new_start.deadline_time)

    def _forget_unknown(self, batch: AdmissionBatch, result: BatchResult) -> None:
        """A workspace that has no row of limits would be looked at again and again."""
        seen = {view.workspace for view in result.workspaces}.union(result.refused_workspaces)
        for workspace in batch.workspaces:
            if workspace not in seen:
                self._queues.is_unknown(workspace)
                log.warning("workspace not found", workspace=workspace)

    def _hand_out(self, claims: Sequence[Claim], reserved: Sequence[Reserved]) -> None:
        by_holder_index: list[list[Claim]] = [[] for _ in reserved]
        for claim in claims:
            by_holder_index[claim.holder_index].append(claim)
        for (holder, room), granted in zip(reserved, by_holder_index, strict=True):
            if room > len(granted):
                holder.give_back(room - len(granted))
            if granted:
                crash_point("dispatcher.grant.before_send")
                if not holder.grant(granted):
                    self._give_up(granted)
                crash_point("dispatcher.grant.after_send")
        self._metrics.granted(claims)

    async def _answer_reports(
        self, pending: Sequence[PendingReport], batch: AdmissionBatch, result: BatchResult
    ) -> None:
        if not pending:
            return
        reports: Sequence[LeaseFinished | LeaseParked] = (*batch.finished, *batch.parked)
        workspaces = (*result.finished, *result.parked)
        took_effect = {
            report for report, workspace in zip(reports, workspaces, strict=True) if workspace is not None
        }
        refused = set(result.refused_reports)
        crash_point("dispatcher.ack.before_send")
        by_holder: dict[int, tuple[CoordinatorSession, list[str]]] = {}
        late: list[PendingReport] = []
        for each in pending:
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

    async def _answer_late(self, late: Sequence[PendingReport]) -> None:
        """Off the hot path: find out why nothing happened."""
        try:
            reasons = await self._late.reasons([each.report for each in late])
        except DependencyUnavailable:
            # A moment later: at once would be as fast as the machine goes, until the database is back.
            self._pending_reports.extend(late)
            self._coalescer.wanted()
            return
        for pending, reason in zip(late, reasons, strict=True):
            if reason is None:
                pending.holder.acknowledge([pending.report_id])
            else:
                pending.holder.refuse(pending.report_id, reason)
                self._metrics.late(pending.report, pending.holder.instance_id, reason)


def _by_id(report: LeaseParked) -> tuple[str, int]:
    return report.execution_id, report.epoch


def _reject(batch: AdmissionBatch, failure: Unstorable) -> BatchResult:
    """What becomes of the one item that cannot be stored."""
    items: Sequence[NewStart | LeaseFinished | LeaseParked] = (
        *batch.new_starts,
        *batch.finished,
        *batch.parked,
    )
    for each in items:
        log.error("error processing item", execution_id=each.execution_id, error=str(failure))
    message = "this item cannot be stored"
    return BatchResult(
        admissions=[Admission(EnqueueOutcome.REJECTED, message=message) for _ in batch.new_starts],
        finished=[None for _ in batch.finished],
        parked=[None for _ in batch.parked],
        refused_reports=[*batch.finished, *batch.parked],
    )
