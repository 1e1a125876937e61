"""Everything that has arrived for the next batch: new starts, reports, and hints where executions wait.

A finished execution frees a slot that nobody needs while no execution waits. Its report then goes with the next batch,
or gets a batch of its own a moment later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from services.chassis.process.batcher import Level
from services.chassis.process.clock import Clock
from services.chassis.process.coalescing import Coalescer
from services.dispatcher.app.ports import Arrival, BatchReport
from services.dispatcher.app.retry_later import RetryLater
from services.dispatcher.core.items import LeaseFinished, Requeued, WorkspaceLimits
from services.dispatcher.core.workspace_queues import WorkspaceQueues

NEW_STARTS_PER_BATCH: Final = 500
REPORTS_PER_BATCH: Final = 1_000
# An input has up to 256 KiB. A batch of many large inputs would hold its locks for long.
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
# Starts that wait for a batch. Beyond this number the enqueue streams are not read.
NEW_STARTS_WAITING_MAX: Final = 20_000


class AdmissionInbox:
    def __init__(self, clock: Clock) -> None:
        self.queues = WorkspaceQueues()
        # Reports that the database refuses to store.
        self.retry_later = RetryLater()
        # Set by everything that may need a batch.
        self.wake = Level()
        # Executions wait that will only be ended. The claim of them is not repeated before this time.
        self.has_ending = False
        self.ending_aside_until = 0.0
        self._clock = clock
        self._arrivals: deque[Arrival] = deque()
        self._reports: deque[BatchReport] = deque()
        # The reports need a batch even when nothing else does.
        self._is_due = False
        self._coalescer = Coalescer(self._reports_due)
        self._has_room = asyncio.Event()
        self._has_room.set()

    # ── items ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def room(self) -> None:
        """Wait until there is room for more new starts."""
        await self._has_room.wait()

    def enqueue(self, arrivals: Sequence[Arrival]) -> None:
        self._arrivals.extend(arrivals)
        if len(self._arrivals) >= NEW_STARTS_WAITING_MAX:
            self._has_room.clear()
        self.wake.set()

    def report(self, reports: Sequence[BatchReport]) -> None:
        self._reports.extend(reports)
        if self.queues.has_waiting or not all(isinstance(each.report, LeaseFinished) for each in reports):
            self._reports_due()
        else:
            self._coalescer.wanted()

    def _reports_due(self) -> None:
        self._is_due = bool(self._reports)
        self.wake.set()

    @property
    def has_items(self) -> bool:
        return bool(self._arrivals or self._reports)

    @property
    def has_due(self) -> bool:
        """Whether an item needs a batch now."""
        return bool(self._arrivals) or self._is_due

    def gather(self) -> tuple[list[Arrival], list[BatchReport]]:
        """Take the items of the next batch."""
        reports = [self._reports.popleft() for _ in range(min(len(self._reports), REPORTS_PER_BATCH))]
        self._is_due = bool(self._reports)
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
        # Holders are given in this order. The sort is stable: within a priority, the oldest is first.
        arrivals.sort(key=lambda arrival: -arrival.new_start.priority)
        return arrivals, reports

    def put_back(self, arrivals: Sequence[Arrival], reports: Sequence[BatchReport]) -> None:
        self._arrivals.extendleft(reversed(arrivals))
        self._reports.extendleft(reversed(reports))
        self._is_due = bool(self._reports)

    # ── hints ────────────────────────────────────────────────────────────────────────────────────────────────────

    def work_in(self, workspace: str, *, is_ends_only: bool = False) -> None:
        """An execution waits in this workspace that no batch has seen, or a slot of it is free."""
        if is_ends_only:
            self.has_ending = True
        else:
            self.queues.work_arrived(workspace)
            self.queues.slot_freed(workspace)
        self.wake.set()

    def requeued(self, rows: Iterable[Requeued]) -> None:
        for row in rows:
            self.work_in(row.workspace, is_ends_only=row.is_ends_only)

    def work_elsewhere(self, workspace: str) -> None:
        """Another replica cannot place an execution of this workspace. This says nothing about slots in use."""
        self.queues.work_arrived(workspace)
        self.wake.set()

    def polled(self, workspaces: Sequence[str], has_ending: bool) -> None:
        now = self._clock.monotonic()
        self.queues.polled(workspaces)
        self.queues.end_aside(now)
        if again := self.retry_later.due(now):
            self._reports.extend(again)
            self._is_due = True
        self.has_ending = self.has_ending or has_ending
        self.wake.set()

    def limits_changed(self, workspace: str, limits: WorkspaceLimits) -> None:
        """The database has these limits now."""
        self.queues.limits_stored(workspace, limits.revision, limits.queued_max)
        self.work_in(workspace)

    def credit_came(self) -> None:
        if self.may_claim:
            self.wake.set()

    @property
    def may_claim(self) -> bool:
        """Whether a holder with credit would be granted something."""
        return self.queues.has_ready or self.is_ending_ready

    @property
    def is_ending_ready(self) -> bool:
        return self.has_ending and self._clock.monotonic() >= self.ending_aside_until
