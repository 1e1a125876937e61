"""The dispatcher's tables in memory. They pass the same contract suite as those in PostgreSQL (tests/contract).

Every call of a store is one statement: a function that changes the tables at one moment. A `Statement` runs it, at once
or after a journey over a network that may lose the call or its answer.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from services.chassis.process.clock import Clock
from services.dispatcher.core import mailbox_limits as limits
from services.dispatcher.core.batch import AdmissionBatch, BatchResult
from services.dispatcher.core.composing import reach
from services.dispatcher.core.items import (
    Admission,
    Claim,
    EnqueueOutcome,
    LateReason,
    LeaseParked,
    LeaseReleased,
    LeaseReport,
    NewStart,
    QueuedRow,
    Requeued,
    State,
    UsedRequest,
    WorkspaceLimits,
    WorkspaceView,
)
from services.dispatcher.core.late_reasons import LeasedRow, late_reason
from services.dispatcher.core.releases import Fate, fate_of

T = TypeVar("T")
_HELD = (State.CLAIMED, State.DISPATCHED)
_REJECTED = Admission(EnqueueOutcome.REJECTED, message="this dispatcher does not know the workspace")
_PARKED_AGAIN = timedelta(seconds=30)
# A message that is hardly older than the grant may have crossed with it.
_CROSSING = timedelta(seconds=5)
_CROSSED_AGAIN = timedelta(seconds=0.2)


class Statement(Protocol):
    async def __call__(self, work: Callable[[], T], /) -> T: ...


async def at_once(work: Callable[[], T]) -> T:
    return work()


@dataclass(slots=True)
class Tenant:
    executions_max: int
    queued_max: int
    revision: int
    closed: bool = False


@dataclass(slots=True)
class QueueRow:
    """A row of the queue, as its migration describes it."""

    execution_id: str
    workspace: str
    state: State
    priority: int
    epoch: int
    holder: str | None
    enqueue_time: datetime
    granted_time: datetime | None
    deadline_time: datetime | None
    request_id: str
    start: bytes
    attempts: int = 0
    urgent: bool = False
    ends_only: bool = False
    begun: bool = False
    parent_told: bool = False
    reopens: bool = False
    wake_time: datetime | None = None
    failure_time: datetime | None = None
    failure_reason: str = ""
    failure_message: str = ""

    @property
    def is_waiting(self) -> bool:
        return self.state is State.PENDING and not self.ends_only

    @property
    def is_held(self) -> bool:
        return self.state in _HELD

    @property
    def is_going(self) -> bool:
        return self.is_held and not self.ends_only

    @property
    def order(self) -> tuple[bool, datetime, str]:
        return not self.urgent, self.enqueue_time - self.priority * timedelta(minutes=1), self.execution_id

    @property
    def requeued(self) -> Requeued:
        return Requeued(self.execution_id, self.workspace, self.ends_only)


@dataclass(slots=True)
class MailboxRow:
    message_id: str
    execution_id: str
    create_time: datetime
    body: bytes


@dataclass
class QueueTables:
    """`is_live` tells whether an instance of a coordinator is LIVE."""

    clock: Clock
    is_live: Callable[[str], bool] = lambda instance_id: True
    tenants: dict[str, Tenant] = field(default_factory=dict)
    queue: dict[str, QueueRow] = field(default_factory=dict)
    requests: dict[tuple[str, str], tuple[bytes, str]] = field(default_factory=dict)
    mailbox: dict[str, MailboxRow] = field(default_factory=dict)
    epochs: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def free_slots(self, workspace: str) -> int:
        going = sum(row.workspace == workspace and row.is_going for row in self.queue.values())
        return max(0, self.tenants[workspace].executions_max - going)

    def mail_of(self, execution_id: str) -> list[MailboxRow]:
        """Oldest first."""
        found = [row for row in self.mailbox.values() if row.execution_id == execution_id]
        return sorted(found, key=lambda row: (row.create_time, row.message_id))

    def forget_mail(self, message_ids: Collection[str]) -> None:
        for message_id in message_ids:
            self.mailbox.pop(message_id, None)

    def held(self, execution_id: str, epoch: int) -> QueueRow | None:
        """The row, if it is held under this epoch."""
        row = self.queue.get(execution_id)
        return row if row is not None and row.is_held and row.epoch == epoch else None

    def unhold(self, row: QueueRow) -> None:
        row.state, row.urgent, row.holder, row.granted_time = State.PENDING, True, None, None


# ── a batch ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class MemoryQueue:
    def __init__(self, tables: QueueTables, run: Statement = at_once) -> None:
        self._tables = tables
        self._run = run

    async def store_limits(self, limits: Mapping[str, WorkspaceLimits]) -> None:
        def work() -> None:
            for workspace, new in limits.items():
                known = self._tables.tenants.get(workspace)
                if known is None or known.revision < new.revision:
                    self._tables.tenants[workspace] = Tenant(*new, closed=known is not None and known.closed)

        await self._run(work)

    async def commit(self, batch: AdmissionBatch) -> BatchResult:
        return await self._run(lambda: _Transaction(self._tables, batch).commit())


class _Transaction:
    """One batch, in the order of its statements."""

    def __init__(self, tables: QueueTables, batch: AdmissionBatch) -> None:
        self.tables = tables
        self.batch = batch
        self.result = BatchResult()
        self.now = tables.clock.now()

    def commit(self) -> BatchResult:
        self.finish()
        self.park()
        self.admit()
        self.claim()
        self.claim_ending()
        return self.result

    def finish(self) -> None:
        for report in self.batch.finished:
            row = self.tables.held(*report)
            if row is not None and not row.reopens:
                del self.tables.queue[row.execution_id]
                self.tables.forget_mail([mail.message_id for mail in self.tables.mail_of(row.execution_id)])
                self.result.took_effect[report] = row.workspace

    def park(self) -> None:
        for report in self.batch.parked:
            row = self.tables.held(report.execution_id, report.epoch)
            if row is not None:
                row.state, row.urgent, row.begun, row.holder = State.PARKED, True, True, None
                if row.ends_only and row.deadline_time is not None and row.deadline_time <= self.now:
                    row.deadline_time = None
                row.ends_only = False
                row.wake_time = None if report.wake_time is None else self.now + (report.wake_time - self.batch.now)
                self.result.took_effect[report] = row.workspace
        seen = {message_id for report in self.batch.parked for message_id in report.seen_message_ids}
        self.tables.forget_mail(seen)
        for report in self.batch.parked:
            self._wake_parked(report)

    def _wake_parked(self, report: LeaseParked) -> None:
        row = self.tables.queue.get(report.execution_id)
        if row is None or row.state is not State.PARKED:
            return
        mail = self.tables.mail_of(row.execution_id)
        is_over = row.wake_time is not None and row.wake_time <= self.now
        is_newer = any(row.granted_time is not None and each.create_time >= row.granted_time for each in mail)
        if is_over or is_newer or (mail and report.seen_message_ids):
            row.state, row.wake_time = State.PENDING, self.now
            self.result.woken.append(row.workspace)
        elif mail:
            newest = max(each.create_time for each in mail)
            has_crossed = row.granted_time is not None and newest >= row.granted_time - _CROSSING
            again = self.now + (_CROSSED_AGAIN if has_crossed else _PARKED_AGAIN)
            row.wake_time = again if row.wake_time is None else min(row.wake_time, again)

    # ── new starts ───────────────────────────────────────────────────────────────────────────────────────────────

    def admit(self) -> None:
        starts = self.batch.new_starts
        self.result.admissions = [_REJECTED] * len(starts)
        for workspace in dict.fromkeys(each.workspace for each in starts):
            if workspace in self.tables.tenants:
                self._admit_into(workspace, [n for n, each in enumerate(starts) if each.workspace == workspace])

    def _admit_into(self, workspace: str, places: Sequence[int]) -> None:
        tables, batch = self.tables, self.batch
        tenant = tables.tenants[workspace]
        free = tables.free_slots(workspace)
        waiting = sum(row.workspace == workspace and row.is_waiting for row in tables.queue.values())
        queued = batch.waiting.get(workspace, min(waiting, tenant.queued_max))
        verdicts = {n: self._verdict(batch.new_starts[n]) for n in places}
        taken = added = 0
        for n in places:
            outcome, existing = verdicts[n]
            is_direct = not outcome and batch.new_start_holders[n] >= 0 and not waiting and taken < free
            if not outcome and not is_direct and queued + added >= tenant.queued_max:
                outcome = EnqueueOutcome.QUEUE_FULL
            shown = existing if outcome in (EnqueueOutcome.EXISTING, EnqueueOutcome.REQUEST_ID_REUSED) else ""
            self.result.admissions[n] = Admission(outcome or EnqueueOutcome.QUEUED, shown)
            if outcome is None:
                self._insert(n, is_direct=is_direct)
                taken, added = taken + is_direct, added + (not is_direct)
        # A repeated start counts as one that waits, too.
        added += sum(outcome is EnqueueOutcome.QUEUED for outcome, _ in verdicts.values())
        total = None if workspace in batch.waiting else queued + added
        self.result.workspaces.append(
            WorkspaceView(workspace, tenant.executions_max, free, taken, bool(waiting) or added > 0, added, total)
        )

    def _verdict(self, start: NewStart) -> tuple[EnqueueOutcome | None, str]:
        """None: it is new."""
        hash_, existing = self.tables.requests.get((start.workspace, start.request_id), (b"", ""))
        if existing and start.request_id:
            if existing == start.execution_id:
                return EnqueueOutcome.QUEUED, existing
            is_same = hash_ == start.request_hash
            return EnqueueOutcome.EXISTING if is_same else EnqueueOutcome.REQUEST_ID_REUSED, existing
        if start.execution_id in self.tables.queue:
            return EnqueueOutcome.QUEUED, ""
        return (EnqueueOutcome.WORKSPACE_CLOSED if self.tables.tenants[start.workspace].closed else None), ""

    def _insert(self, n: int, *, is_direct: bool) -> None:
        start, holder_index = self.batch.new_starts[n], self.batch.new_start_holders[n]
        epoch = next(self.tables.epochs) if is_direct else 0
        self.tables.queue[start.execution_id] = QueueRow(
            start.execution_id,
            start.workspace,
            State.CLAIMED if is_direct else State.PENDING,
            start.priority,
            epoch,
            self.batch.holders[holder_index] if is_direct else None,
            self.now,
            self.now if is_direct else None,
            start.deadline_time,
            start.request_id,
            start.start,
        )
        if start.request_id:
            self.tables.requests[start.workspace, start.request_id] = (start.request_hash, start.execution_id)
        if is_direct:
            us = micros(self.now)
            self.result.claims.append(
                Claim(start.execution_id, start.workspace, epoch, holder_index, start.order, us, us)
            )

    # ── claims ───────────────────────────────────────────────────────────────────────────────────────────────────

    def claim(self) -> None:
        batch, tables = self.batch, self.tables
        if not batch.workspaces:
            return
        places = batch.claim_holders
        limit = reach(len(places), len(batch.workspaces))
        free = {name: tables.free_slots(name) for name in batch.workspaces if name in tables.tenants}
        candidates = {name: self._candidates(name, min(free[name], limit)) for name in free}
        in_turn = [row for turn in itertools.zip_longest(*candidates.values()) for row in turn if row is not None]
        taken = Counter(row.workspace for row in self._grant(in_turn, places, is_ends_only=False))
        for name, rows in candidates.items():
            has_more = len(rows) > taken[name] or len(rows) == min(free[name], limit)
            slots = tables.tenants[name].executions_max
            self.result.workspaces.append(WorkspaceView(name, slots, free[name], taken[name], has_more, -taken[name]))

    def _candidates(self, workspace: str, count: int) -> list[QueueRow]:
        found = [row for row in self.tables.queue.values() if row.workspace == workspace and row.is_waiting]
        return sorted(found, key=lambda row: row.order)[:count]

    def claim_ending(self) -> None:
        rows = [row for row in self.tables.queue.values() if row.state is State.PENDING and row.ends_only]
        rows.sort(key=lambda row: row.execution_id)
        self._grant(rows, self.batch.ending_holders, is_ends_only=True)

    def _grant(self, rows: Sequence[QueueRow], places: Sequence[int], *, is_ends_only: bool) -> list[QueueRow]:
        granted: list[QueueRow] = []
        carried = 0
        for row, holder_index in zip(rows, places, strict=False):
            if carried >= limits.CLAIM_BYTES_MAX:
                break
            mail = self.tables.mail_of(row.execution_id)
            carried += min(sum(len(each.body) for each in mail), limits.GRANT_BYTES_MAX)
            is_resumed, wake_us = row.epoch > 0, micros(row.wake_time)
            row.state, row.epoch, row.holder = State.CLAIMED, next(self.tables.epochs), self.batch.holders[holder_index]
            row.granted_time, row.wake_time = self.now, None
            self.result.claims.append(
                Claim(
                    row.execution_id,
                    row.workspace,
                    row.epoch,
                    holder_index,
                    row.start,
                    micros(row.enqueue_time),
                    micros(self.now),
                    is_resumed,
                    row.begun,
                    is_ends_only,
                    _fitting([each.body for each in mail]),
                    wake_us,
                )
            )
            granted.append(row)
        return granted


def _fitting(bodies: Sequence[bytes]) -> list[bytes]:
    """The oldest messages, up to the one that reaches the limit."""
    before = itertools.accumulate([len(body) for body in bodies], initial=0)
    return [body for body, size in zip(bodies, before, strict=False) if size < limits.GRANT_BYTES_MAX]


def micros(time: datetime | None) -> int:
    return 0 if time is None else round(time.timestamp() * 1e6)


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class MemoryLeases:
    def __init__(self, tables: QueueTables, run: Statement = at_once, *, lease_scale: float) -> None:
        self._tables = tables
        self._run = run
        self._lease_scale = lease_scale

    async def hand_back(self, leases: Sequence[tuple[str, int]], begun: Collection[str] = ()) -> list[Requeued]:
        def work() -> list[Requeued]:
            held = [row for lease in leases if (row := self._tables.held(*lease)) is not None]
            for row in held:
                self._tables.unhold(row)
                row.begun |= row.execution_id in begun
            return [row.requeued for row in held]

        return await self._run(work)

    async def keep_open(self, leases: Sequence[tuple[str, int]]) -> list[Requeued]:
        def work() -> list[Requeued]:
            held = [row for lease in leases if (row := self._tables.held(*lease)) is not None and row.reopens]
            for row in held:
                self._tables.unhold(row)
                row.begun, row.reopens, row.ends_only, row.deadline_time = True, False, False, None
            return [row.requeued for row in held]

        return await self._run(work)

    async def note_begun(self, leases: Sequence[tuple[str, int]]) -> None:
        def work() -> None:
            for execution_id, epoch in leases:
                row = self._tables.queue.get(execution_id)
                if row is not None and row.epoch == epoch:
                    row.begun = True

        await self._run(work)

    async def end(self, instances: Sequence[str]) -> list[Requeued]:
        def work() -> list[Requeued]:
            held = [row for row in self._tables.queue.values() if row.is_held and row.holder in instances]
            for row in held:
                self._tables.unhold(row)
                row.epoch = next(self._tables.epochs)
            return [row.requeued for row in held]

        return await self._run(work)

    async def fail(self, report: LeaseReleased) -> tuple[str, Fate] | None:
        def work() -> tuple[str, Fate] | None:
            row = self._tables.held(report.execution_id, report.epoch)
            if row is None:
                return None
            fate, now = fate_of(report, row.attempts), self._tables.clock.now()
            row.state, row.attempts, row.urgent = fate.state, fate.attempts, True
            row.begun |= report.has_begun
            row.holder = row.granted_time = None
            seconds = fate.wake_seconds * self._lease_scale
            row.wake_time = now + timedelta(seconds=seconds) if seconds > 0 else None
            row.failure_reason, row.failure_message = fate.failure_reason, fate.failure_message
            row.failure_time = now if fate.state is State.FAILED else None
            row.parent_told = False
            return row.workspace, fate

        return await self._run(work)

    async def find(self, execution_ids: Collection[str]) -> dict[str, LeasedRow]:
        def work() -> dict[str, LeasedRow]:
            found = [row for each in execution_ids if (row := self._tables.queue.get(each)) is not None]
            return {row.execution_id: LeasedRow(row.epoch, row.state, row.holder) for row in found}

        return await self._run(work)

    async def reasons(self, reports: Sequence[LeaseReport]) -> list[LateReason | None]:
        found = await self.find({report.execution_id for report in reports})
        return [late_reason(report, found.get(report.execution_id)) for report in reports]


# ── reads ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class MemoryQueueReads:
    def __init__(self, tables: QueueTables, run: Statement = at_once) -> None:
        self._tables = tables
        self._run = run

    async def get(self, execution_ids: Sequence[str]) -> list[QueuedRow]:
        def work() -> list[QueuedRow]:
            found = [row for each in execution_ids if (row := self._tables.queue.get(each)) is not None]
            return [
                QueuedRow(row.state, row.start, row.attempts, row.failure_reason, row.failure_message, row.failure_time)
                for row in found
            ]

        return await self._run(work)

    async def requests(self, workspace: str, request_ids: Sequence[str]) -> list[UsedRequest]:
        def work() -> list[UsedRequest]:
            used = self._tables.requests
            keys = [(workspace, each) for each in request_ids if (workspace, each) in used]
            return [UsedRequest(key[1], *used[key]) for key in keys]

        return await self._run(work)
