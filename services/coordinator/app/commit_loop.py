"""The commit loop: the one place where executions change.

    take dirty executions ─► decide each inbox ─► assign ready work to runners ─► append all in one commit ─► effects

Nobody is told anything before the commit. While the commit is under way, new inputs gather for the next batch. Under
load, batches keep a little distance (`AdaptivePacer`). If the database is away, the same append is tried again, in
halves, until it is answered or the lease is lost. Each execution has its own fence, so an append whose answer was lost
is recognised when it is repeated, in halves too.

Hazard: one bad execution must not hold up the rest. If a decision raises, that execution alone is dropped. A batch that
the database rejects is halved until the execution to blame is found. `AfterCommit` contains what raises after the
commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.backoff import Backoff
from services.chassis.process.clock import Clock
from services.chassis.process.coalescing import AdaptivePacer
from services.chassis.process.crash import crash_point
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import COUNT_BUCKETS, counter, histogram
from services.coordinator.app.after_commit import AfterCommit, note_broken
from services.coordinator.app.assigning import Assigner, Assignment
from services.coordinator.app.circuits import Circuits
from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.app.owned_executions import JOURNAL_GONE, OwnedExecutions
from services.coordinator.app.pending_append import PendingAppend
from services.coordinator.app.ports import AppendRejected, Dispatch, Fence, Journal, JournalCodec, SnapshotLog
from services.coordinator.core.state import Execution

log = logger(__name__)

# A larger batch costs no less per execution and delays those behind it.
_EXECUTIONS_MAX: Final = 500
# Bytes of events in one batch. Results have up to 256 KiB each and are written twice, and an append that takes longer
# than the journal's connection waits would never be written.
BYTES_MAX: Final = 8 * 1024 * 1024
# Snapshots in one batch. Each takes a few ms, which the other executions wait for.
_SNAPSHOTS_MAX: Final = 4
_POLL_SECONDS: Final = 1.0
_NO_ROW: Final = Fence(0, 0)

_flush_size = histogram("coordinator_flush_executions", "Executions in one append.", buckets=COUNT_BUCKETS)
_flush_events = histogram("coordinator_flush_events", "Events in one append.", buckets=COUNT_BUCKETS)
_flush_seconds = histogram("coordinator_flush_seconds", "Duration of an append.")
_flush_retries = counter("coordinator_flush_retries_total", "Appends that had to be repeated.")
_fenced = counter("coordinator_fenced_total", "Executions dropped because another holder has them.")


class CommitLoop:
    def __init__(
        self,
        *,
        executions: OwnedExecutions,
        assigner: Assigner,
        circuits: Circuits,
        after_commit: AfterCommit,
        journal: Journal,
        dispatch: Dispatch,
        codec: JournalCodec,
        clock: Clock,
        begin_snapshots: Callable[[Execution], SnapshotLog],
        snapshot_events: int,
    ) -> None:
        """An execution has snapshots from its event number `snapshot_events` on."""
        self._executions = executions
        self._assigner = assigner
        self._circuits = circuits
        self._after_commit = after_commit
        self._journal = journal
        self._dispatch = dispatch
        self._codec = codec
        self._clock = clock
        self._begin_snapshots = begin_snapshots
        self._snapshot_events = snapshot_events
        self._pacer = AdaptivePacer(clock)
        self._is_leaving = False
        self._at_rest = asyncio.Event()

    async def run(self) -> None:
        while True:
            await self._executions.level.wait(_POLL_SECONDS)
            self._at_rest.clear()
            # There is at least one batch per wake-up, because new credit needs a batch even without any input.
            await self._run_batch()
            while self._executions.dirty:
                await self._run_batch()
            self._at_rest.set()

    async def hand_back_all(self) -> None:
        """Drain: what has arrived is journalled, no run is leased any more, then every execution goes back at once."""
        self._is_leaving = True
        self._executions.level.set()
        self._at_rest.clear()
        await self._at_rest.wait()
        for owned in list(self._executions.by_id.values()):
            self._executions.return_lease(owned, "DRAINING", failed=False)

    async def _run_batch(self) -> None:
        await self._pacer.begin()
        now = self._clock.epoch_ns() // 1_000
        batch = self._decide(now)
        if not self._assigner.is_idle and self._dispatch.may_start() and not self._is_leaving:
            self._assign(batch, now)
        if not batch:
            return
        self._add_snapshots(batch.values())
        written = await self._write([pending for pending in batch.values() if pending.events])
        # Some may have been dropped meanwhile. Their reports are sent away there, as those of the written are.
        unchanged = [pending for pending in batch.values() if not pending.events]
        self._after_commit.run([*written, *unchanged])
        self._pacer.carried(len(batch))

    # ── deciding ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _decide(self, now: int) -> dict[OwnedExecution, PendingAppend]:
        batch: dict[OwnedExecution, PendingAppend] = {}
        dirty = self._executions.dirty
        room = BYTES_MAX
        while dirty and len(batch) < _EXECUTIONS_MAX and room > 0:
            owned, _ = dirty.popitem(last=False)
            execution = owned.execution
            if owned.is_loading or owned.is_dropped or execution is None:
                continue
            pending = PendingAppend(owned, execution, self._codec)
            try:
                if self._circuits.has_open:
                    self._circuits.date(owned)
                room -= pending.decide_inbox(now, room)
                # After an adoption its live runs are those that the journal has.
                self._executions.places.follow(owned, execution.live if pending.is_adoption else pending.runs, now)
                if owned.inbox:
                    # The rest of the inbox is decided after the other executions.
                    dirty[owned] = None
                if execution.ready and execution.paused_by is None and owned.may_use_runners:
                    self._assigner.enter(owned, now, is_following=pending.from_seq > 0)
            except Exception as failure:  # noqa: BLE001 - a bug in one execution must not harm the others
                self._break(pending, failure)
                continue
            batch[owned] = pending
        return batch

    def _assign(self, batch: dict[OwnedExecution, PendingAppend], now: int) -> None:
        for owned, given in self._assigner.give(now).items():
            assert owned.execution is not None
            pending = batch.get(owned) or PendingAppend(owned, owned.execution, self._codec)
            try:
                if self._circuits.has_open and self._hold_back(pending, given, now):
                    batch[owned] = pending
                if pending.assign(given, now):
                    self._executions.places.follow(owned, pending.places, now)
                    batch[owned] = pending
                    if pending.has_failed_some:
                        # The failures may have made other work ready.
                        self._assigner.enter(owned, now)
                        self._executions.level.set()
                    continue
            except Exception as failure:  # noqa: BLE001 - as above
                batch.pop(owned, None)
                self._break(pending, failure)
            for each in given:
                each.session.give_back(1)

    def _hold_back(self, pending: PendingAppend, given: list[Assignment], now: int) -> bool:
        """Takes from `given` what must not be called now. True: there was some."""
        held = self._circuits.holds(pending.execution, [each.work for each in given])
        if not held:
            return False
        pending.hold_back(held, now)
        keys = {each.key for each in held}
        for each in [each for each in given if each.work.key in keys]:
            given.remove(each)
            each.session.give_back(1)
        return True

    def _break(self, pending: PendingAppend, failure: Exception) -> None:
        """A bug: this execution goes back as failed; after three failures it is a dead letter. The rest goes on."""
        note_broken(pending.owned, failure)
        message = "the coordinator could not decide this execution; its log says why"
        self._executions.return_lease(pending.owned, "INTERNAL", message)
        self._lose(pending)

    def _lose(self, pending: PendingAppend) -> None:
        self._after_commit.give_back_places(pending)
        self._executions.drop(pending.owned)
        self._executions.send_away(each.source for each in pending.inputs)

    def _add_snapshots(self, batch: Collection[PendingAppend]) -> None:
        """Long executions write now and then what their journals add up to."""
        room = _SNAPSHOTS_MAX
        for pending in batch:
            execution, owned = pending.execution, pending.owned
            if execution.seq < self._snapshot_events or not pending.events:
                continue
            if owned.snapshots is None:
                owned.snapshots = self._begin_snapshots(execution)
            if room:
                pending.snapshot = owned.snapshots.due(execution)
                room -= pending.snapshot is not None

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _write(self, batch: list[PendingAppend], backoff: Backoff | None = None) -> list[PendingAppend]:
        """Returns those that are in the journal now. The others have lost their lease or are loaded again."""
        backoff = backoff or Backoff()
        written: list[PendingAppend] = []
        while batch := self._still_owned(batch):
            try:
                refused = await self._append(batch)
            except AppendRejected as failure:
                if len(batch) > 1:
                    return written + await self._write_halves(batch, backoff)
                self._break(batch[0], failure)
                break
            except DependencyUnavailable as failure:
                _flush_retries.inc()
                log.warning("the journal is away", executions=len(batch), error=str(failure))
                await asyncio.sleep(backoff.next())
                if len(batch) > 1:
                    # The batch may have been too large for the time limit of a statement.
                    return written + await self._write_halves(batch, backoff)
                continue
            backoff.reset()
            again = []
            for place, pending in enumerate(batch):
                fence = refused.get(place)
                if fence is None or self._is_ours(pending, fence):
                    written.append(pending)
                elif self._is_passable(pending, fence):
                    again.append(pending)
                else:
                    self._refused(pending, fence)
            batch = again
        return written

    async def _write_halves(self, batch: list[PendingAppend], backoff: Backoff) -> list[PendingAppend]:
        half = len(batch) // 2
        return [*await self._write(batch[:half], backoff), *await self._write(batch[half:], backoff)]

    async def _append(self, batch: Sequence[PendingAppend]) -> dict[int, Fence]:
        try:
            appends = [pending.append() for pending in batch]
        except Exception as failure:
            # One execution does not fit into rows. It is found by halving, like one that the database rejects.
            raise AppendRejected("an execution does not fit into its rows") from failure
        has_snapshot = any(append.snapshot is not None for append in appends)
        crash_point("coordinator.append.before")
        if has_snapshot:
            crash_point("coordinator.snapshot.before")
        began = self._clock.monotonic()
        refused = await self._journal.append(appends)
        if has_snapshot:
            crash_point("coordinator.snapshot.after")
        crash_point("coordinator.append.after")
        _flush_seconds.observe(self._clock.monotonic() - began)
        _flush_size.observe(len(appends))
        _flush_events.observe(sum([each.last_seq - each.from_seq for each in appends]))
        return dict(refused)

    def _still_owned(self, batch: list[PendingAppend]) -> list[PendingAppend]:
        for pending in batch:
            if pending.owned.is_dropped:
                self._lose(pending)
        return [pending for pending in batch if not pending.owned.is_dropped]

    @staticmethod
    def _is_ours(pending: PendingAppend, fence: Fence) -> bool:
        """An earlier try, whose answer was lost, has written it."""
        return fence == (pending.owned.epoch, pending.execution.seq)

    @staticmethod
    def _is_passable(pending: PendingAppend, fence: Fence) -> bool:
        """The row that refused it was not visible yet, so the next try decides. An execution has no row only before its
        first append; without that condition one whose row is gone would be tried for ever."""
        return fence == (pending.owned.epoch, pending.from_seq) or (fence == _NO_ROW and pending.from_seq == 0)

    def _refused(self, pending: PendingAppend, fence: Fence) -> None:
        owned = pending.owned
        self._after_commit.give_back_places(pending)
        if pending.from_seq == 0 and fence.epoch < owned.epoch:
            # An earlier holder had begun it. It is loaded and adopted, and the inputs are decided again.
            owned.inbox = [*pending.inputs[1:], *owned.inbox]
            self._executions.reload(owned)
            return
        if fence == _NO_ROW:
            self._executions.return_lease(owned, *JOURNAL_GONE, permanent=True)
        else:
            _fenced.inc()
            ids = {"execution_id": owned.execution_id, "epoch": owned.epoch}
            log.warning("fenced: another holder goes on with it", **ids, present_epoch=fence.epoch)
        self._lose(pending)
