"""The admission loop: one transaction commits everything that has gathered, then the next batch begins.

Each replica has one loop. A batch has one item on an idle system and hundreds under load; under load the loop also
rests between batches (`AdaptivePacer`). Answers to starts, grants and acknowledgements leave after the commit.

    gather ──► reserve credit ──► one transaction ──► answer, grant, give back
       ▲                                                   │
       └──────── new starts, reports, credit, workspaces ◄─┘

Credit is reserved at the holders' sessions before the transaction, so that a claim takes no more than holders have room
for. Unused credit is given back afterwards.

A finished execution frees a slot that nobody needs while no execution waits. Its report then goes with the next batch,
or gets a batch of its own a moment later.

Hazards: when the outcome of a commit is unknown, the same items are committed again, because every statement of a batch
is safe to repeat (store/queue.py). A batch that the database refuses is split (splitting.py): a start at fault is
rejected, a report at fault is tried again later (retry_later.py), a workspace at fault is left alone for a while.
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
from services.dispatcher.app.report_answers import acknowledge, answer_late
from services.dispatcher.app.retry_later import RetryLater
from services.dispatcher.app.splitting import commit
from services.dispatcher.core.batch import AdmissionBatch, BatchResult
from services.dispatcher.core.composing import CLAIMS_PER_BATCH, ENDING_PER_BATCH, compose
from services.dispatcher.core.holder_shares import shares
from services.dispatcher.core.items import Claim, EnqueueOutcome, LeaseFinished, LeaseParked, WorkspaceLimits
from services.dispatcher.core.mailbox_limits import CLAIM_BYTES_MAX
from services.dispatcher.core.workspace_queues import ASIDE_SECONDS, WorkspaceQueues

log = logger(__name__)

NEW_STARTS_PER_BATCH: Final = 500
REPORTS_PER_BATCH: Final = 1_000
# The demand reported to holders for each workspace that lacks only credit: as much as it could use at once.
DEMAND_PER_WORKSPACE: Final = 100
# An input has up to 256 KiB. A batch of many large inputs would hold its locks for long.
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
# Starts that wait for a batch. Beyond this number the enqueue streams are not read.
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
        notify: Callable[[str], None],
        queues: WorkspaceQueues,
        metrics: AdmissionMetrics,
        clock: Clock,
        poll_seconds: float,
    ) -> None:
        """`holders` gives the sessions with credit, most credit first. `give_up` takes claims whose holder's stream
        is gone. `due` gets the times at which executions have to be woken, `demand` the need for credit,
        `notify` each workspace in which a batch left executions, for the other replicas.
        """
        self._store = store
        self._late = late
        self._holders = holders
        self._give_up = give_up
        self._due = due
        self._demand = demand
        self._notify = notify
        self._queues = queues
        self._metrics = metrics
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._arrivals: deque[Arrival] = deque()
        self._pending_reports: deque[PendingReport] = deque()
        self._retry_later = RetryLater()
        # Whether the pending reports need a batch even when nothing else does.
        self._is_due = False
        self._coalescer = Coalescer(self._reports_due)
        self._pacer = AdaptivePacer(clock)
        self._has_ending = False
        # The database refused the claim of executions to be ended; it is not repeated before this time.
        self._ending_aside_until = 0.0
        self._wake = Level()
        self._is_committing = False
        self._has_room = asyncio.Event()
        self._has_room.set()

    # ── input ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def room(self) -> None:
        """Wait until there is room for more new starts."""
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

    def work_in(self, workspace: str, *, is_ends_only: bool = False) -> None:
        """An execution waits in this workspace that no batch has seen, or a slot of it is free."""
        if is_ends_only:
            self._has_ending = True
        else:
            self._queues.work(workspace)
            self._queues.slot(workspace)
        self._wake.set()

    def work_elsewhere(self, workspace: str) -> None:
        """Another replica cannot place an execution of this workspace. This says nothing about slots in use."""
        self._queues.work(workspace)
        self._wake.set()

    def polled(self, workspaces: Sequence[str], has_ending: bool) -> None:
        now = self._clock.monotonic()
        self._queues.polled(workspaces)
        self._queues.end_aside(now)
        if again := self._retry_later.due(now):
            self._pending_reports.extend(again)
            self._is_due = True
        self._has_ending = self._has_ending or has_ending
        self._wake.set()

    def limits_changed(self, workspace: str, limits: WorkspaceLimits) -> None:
        """The database has these limits now."""
        self._queues.limits_stored(workspace, limits.revision, limits.queued_max)
        self.work_in(workspace)

    async def idle(self) -> None:
        """Wait until all items are committed and answered."""
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
        """Whether a batch has something to do now."""
        if self._arrivals or (self._pending_reports and self._is_due):
            return True
        return (self._queues.has_ready or self._is_ending_ready) and bool(self._holders())

    @property
    def _is_ending_ready(self) -> bool:
        return self._has_ending and self._clock.monotonic() >= self._ending_aside_until

    async def run_once(self) -> None:
        """Commit one batch. Raises DependencyUnavailable, with all items kept for the next batch."""
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
            batch = compose(
                self._queues,
                [arrival.new_start for arrival in arrivals],
                [each.report for each in pending],
                {holder.instance_id: room for holder, room in reserved},
                is_ending_ready=self._is_ending_ready,
                now=self._clock.now(),
                monotonic=self._clock.monotonic(),
            )
            began = time.perf_counter()
            result = await commit(self._store, batch)
        except DependencyUnavailable:
            self._put_back(arrivals, pending)
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

    def _put_back(self, arrivals: Sequence[Arrival], pending: Sequence[PendingReport]) -> None:
        self._arrivals.extendleft(reversed(arrivals))
        self._pending_reports.extendleft(reversed(pending))
        self._is_due = bool(self._pending_reports)

    def _gather(self) -> tuple[list[Arrival], list[PendingReport]]:
        pending = [self._pending_reports.popleft() for _ in range(min(len(self._pending_reports), REPORTS_PER_BATCH))]
        self._is_due = bool(self._pending_reports)
        arrivals: list[Arrival] = []
        # One statement cannot judge two items with the same key, so the second waits for the next batch.
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
            # Holders are given in this order. The sort is stable: within a priority, the oldest is first.
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
            # The batch rejects starts of a workspace that has no limits.
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

    # ── after the commit ─────────────────────────────────────────────────────────────────────────────────────────

    def _learn(self, batch: AdmissionBatch, result: BatchResult) -> None:
        now = self._clock.monotonic()
        if batch.ending_holders:
            granted = [claim for claim in result.claims if claim.is_ends_only]
            # More may wait when the number of holders or the size of the mailboxes limited the claim.
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
                self._notify(view.workspace)
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
        """A workspace without a row of limits would otherwise stay in the line for ever."""
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
        took_effect = {report for report, workspace in zip(reports, workspaces, strict=True) if workspace is not None}
        refused = set(result.refused_reports)
        done: list[PendingReport] = []
        late: list[PendingReport] = []
        for each in pending:
            if each.report in took_effect:
                done.append(each)
            elif each.report in refused:
                self._retry_later.keep(each, self._clock.monotonic())
            else:
                late.append(each)
        crash_point("dispatcher.ack.before_send")
        acknowledge(done)
        crash_point("dispatcher.ack.after_send")
        if late:
            await self._answer_late(late)

    async def _answer_late(self, late: Sequence[PendingReport]) -> None:
        """Find out why these reports changed nothing. This is rare, so it is not part of the batch."""
        try:
            reasons = await self._late.reasons([each.report for each in late])
        except DependencyUnavailable:
            # They are due a moment later: retried at once, they would keep the loop busy until the database is back.
            self._pending_reports.extend(late)
            self._coalescer.wanted()
            return
        answer_late(late, reasons, self._metrics)
