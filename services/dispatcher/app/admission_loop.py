"""The admission loop: one transaction commits all items that have arrived, then the next batch begins.

Each replica has one loop. A batch has one item on an idle system and hundreds under load; under load the loop also
pauses between batches (`AdaptivePacer`). Answers to starts, grants and acknowledgements are sent after the commit.

    gather ──► reserve credit ──► one transaction ──► answer, grant, give back credit
       ▲                                                   │
       └──────── new starts, reports, credit, workspaces ◄─┘

Credit is reserved at the holders' sessions before the transaction, so that a claim takes no more than holders have room
for. Unused credit is given back afterwards.

Hazards: when the outcome of a commit is unknown, the same items are committed again, because every statement of a batch
is safe to repeat (store/queue.py). A batch that the database refuses is split (splitting.py): a start at fault is
rejected, a report at fault is tried again later (retry_later.py), a workspace at fault is not served for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.lease.frames import Grant
from services.chassis.process.backoff import Backoff
from services.chassis.process.clock import Clock
from services.chassis.process.coalescing import AdaptivePacer
from services.chassis.process.crash import crash_point
from services.chassis.telemetry.logs import logger
from services.dispatcher.app.admission_inbox import AdmissionInbox
from services.dispatcher.app.admission_metrics import AdmissionMetrics
from services.dispatcher.app.ports import AdmissionStore, BatchReport, Coordinators, CoordinatorSession, Unstorable
from services.dispatcher.app.replica_notices import ReplicaNotices
from services.dispatcher.app.returns import Returns, acknowledge
from services.dispatcher.app.splitting import commit
from services.dispatcher.app.waking import Waking
from services.dispatcher.core.batch import AdmissionBatch, BatchResult
from services.dispatcher.core.composing import CLAIMS_PER_BATCH, ENDING_PER_BATCH, compose, shares
from services.dispatcher.core.items import Claim, EnqueueOutcome, NewStart, WorkspaceLimits
from services.dispatcher.core.mailbox_limits import CLAIM_BYTES_MAX
from services.dispatcher.core.workspace_queues import ASIDE_SECONDS

log = logger(__name__)

# How much credit we ask holders for, per workspace that has work and slots but no credit.
DEMAND_PER_WORKSPACE: Final = 100


# A holder, and how much of its credit is reserved.
Reserved = tuple[CoordinatorSession, int]


class AdmissionLoop:
    def __init__(
        self,
        *,
        inbox: AdmissionInbox,
        store: AdmissionStore,
        coordinators: Coordinators,
        returns: Returns,
        waking: Waking,
        replica_notices: ReplicaNotices,
        grant_of: Callable[[Claim], Grant],
        metrics: AdmissionMetrics,
        clock: Clock,
        poll_seconds: float,
    ) -> None:
        self._inbox = inbox
        self._queues = inbox.queues
        self._store = store
        self._coordinators = coordinators
        self._returns = returns
        self._waking = waking
        self._replica_notices = replica_notices
        self._grant_of = grant_of
        self._metrics = metrics
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._pacer = AdaptivePacer(clock)
        self._is_committing = False

    async def idle(self) -> None:
        """Wait until all items are committed and answered."""
        while self._inbox.has_items or self._is_committing:
            await self._clock.sleep(0.01)

    async def run(self) -> None:
        backoff = Backoff()
        while True:
            await self._inbox.wake.wait(self._poll_seconds)
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
        return self._inbox.has_due or (self._inbox.may_claim and bool(self._coordinators.with_credit()))

    async def run_once(self) -> None:
        """Commit one batch. Raises DependencyUnavailable, with all items kept for the next batch."""
        self._is_committing = True
        try:
            await self._run_batch()
        finally:
            self._is_committing = False

    async def _run_batch(self) -> None:
        arrivals, pending = self._inbox.gather()
        new_starts = [arrival.new_start for arrival in arrivals]
        reserved: list[Reserved] = []
        try:
            await self._store_new_limits(new_starts)
            reserved = self._reserve(len(arrivals))
            batch = compose(
                self._queues,
                new_starts,
                [each.report for each in pending],
                {holder.instance_id: room for holder, room in reserved},
                is_ending_ready=self._inbox.is_ending_ready,
                now=self._clock.now(),
                monotonic=self._clock.monotonic(),
            )
            began = time.perf_counter()
            result = await commit(self._store, batch)
        except DependencyUnavailable:
            self._inbox.put_back(arrivals, pending)
            for holder, room in reserved:
                holder.give_back(room)
            raise
        self._metrics.committed(batch, time.perf_counter() - began)
        self._learn(batch, result)
        self._hand_out(result.claims, reserved)
        for arrival, admission in zip(arrivals, result.admissions, strict=True):
            arrival.asker.answered(arrival.new_start, admission)
        self._coordinators.set_demand(self._queues.ready_count * DEMAND_PER_WORKSPACE)
        self._answer_reports(pending, result)
        self._pacer.carried(len(arrivals) + len(pending))

    async def _store_new_limits(self, new_starts: Sequence[NewStart]) -> None:
        wanted: dict[str, WorkspaceLimits] = {}
        for new_start in new_starts:
            workspace, limits = new_start.workspace, new_start.limits
            known = wanted.get(workspace)
            is_newer = known is None or known.revision < limits.revision
            if is_newer and not self._queues.knows_limits(workspace, limits.revision):
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
        if self._inbox.is_ending_ready:
            wanted += ENDING_PER_BATCH
        holders = self._coordinators.with_credit() if wanted else ()
        reserved: list[Reserved] = []
        for holder, share in zip(holders, shares([each.credit for each in holders], wanted), strict=True):
            count = holder.take_credit(share)
            if count:
                reserved.append((holder, count))
        return reserved

    # ── after the commit ─────────────────────────────────────────────────────────────────────────────────────────

    def _learn(self, batch: AdmissionBatch, result: BatchResult) -> None:
        now = self._clock.monotonic()
        if batch.ending_holders:
            granted = [claim for claim in result.claims if claim.is_ends_only]
            # More may wait when the number of holders or the size of the messages limited the claim.
            carried = sum(len(body) for claim in granted for body in claim.messages)
            is_cut = len(granted) == len(batch.ending_holders) or carried >= CLAIM_BYTES_MAX
            self._inbox.has_ending = is_cut or result.is_ending_refused
        if result.is_ending_refused:
            self._inbox.ending_aside_until = now + ASIDE_SECONDS
        for refused in result.refused_workspaces:
            self._queues.set_aside(refused, now)
        for view in result.workspaces:
            if self._queues.update_from(view, now):
                self._metrics.at_capacity(view)
            if view.has_more:
                self._replica_notices.waits_in(view.workspace)
        self._forget_unknown(batch, result)
        for workspace in result.took_effect.values():
            self._queues.slot_freed(workspace)
        for workspace in result.woken:
            self._queues.work_arrived(workspace)
        for parked in batch.parked:
            if parked.wake_time is not None:
                self._waking.wake_at(parked.wake_time)
        for new_start, admission in zip(batch.new_starts, result.admissions, strict=True):
            if admission.outcome is EnqueueOutcome.QUEUED and new_start.deadline_time is not None:
                self._waking.wake_at(new_start.deadline_time)

    def _forget_unknown(self, batch: AdmissionBatch, result: BatchResult) -> None:
        """A workspace without a row of limits would otherwise stay in the round-robin of ready queues for ever."""
        seen = {view.workspace for view in result.workspaces}.union(result.refused_workspaces)
        for workspace in batch.workspaces:
            if workspace not in seen:
                self._queues.forget(workspace)
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
                if not holder.grant([self._grant_of(claim) for claim in granted]):
                    # The stream is gone.
                    self._returns.hand_back([(claim.execution_id, claim.epoch) for claim in granted])
                crash_point("dispatcher.grant.after_send")
        self._metrics.granted(claims)

    def _answer_reports(self, pending: Sequence[BatchReport], result: BatchResult) -> None:
        if not pending:
            return
        done: list[BatchReport] = []
        late: list[BatchReport] = []
        for each in pending:
            if each.report in result.took_effect:
                done.append(each)
            elif each.report in result.refused_reports:
                self._inbox.retry_later.keep(each, self._clock.monotonic())
            else:
                late.append(each)
        crash_point("dispatcher.ack.before_send")
        acknowledge(done)
        crash_point("dispatcher.ack.after_send")
        if late:
            self._returns.late(late)
