"""Reads executions from the two places where they can be, and cancels them.

Coordinators have the executions that started. The dispatchers' queue has those that wait for admission. The record of a
coordinator counts, with one exception: an execution that dispatchers have given up has ended, and its row in the queue
says how. A single execution is looked up at the coordinator, then in the queue, then at the coordinator again, because
it may start between the first two reads; it never returns to the queue unstarted.
For lists the queue is read first: an execution that leaves it during the read is then found at the coordinator.

Hazard: nothing here may return a record of another workspace. `find` checks it in `_own`, `page` compares each record.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from services.api.app import refusals
from services.api.app.identifiers import is_execution_id
from services.api.app.ports import ExecutionQuery, ExecutionQueue, ExecutionReads, Watch, Watches
from services.api.app.queued import execution_of, fields_of, given_up, record_of
from services.api.core.filters import Filter, asks_of, matches
from services.api.core.paging import PAGE_SIZE_MAX
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.process.clock import Clock
from services.chassis.process.crash import crash_point
from windlass.api.v1 import resources_pb2
from windlass.coordinator.v1 import reads_pb2
from windlass.dispatcher.v1 import queue_pb2

Record = reads_pb2.ExecutionRecord
_State = resources_pb2.Execution
FINAL: Final = frozenset({_State.SUCCESS, _State.FAILED, _State.CANCELLED, _State.TIMEOUT})
CANCEL_SECONDS: Final = 2.0
# How long the read of a running execution waits to learn whether it was given up. Nearly all were not.
_GIVEN_UP_SECONDS: Final = 1.0
# For this time an execution that was not given up is not checked again, so that reading it often costs dispatchers
# nothing, and does not wait for them while they are away. Its end may be seen this late. And how many are remembered.
_GOING_SECONDS: Final = 2.0
_GOING_MAX: Final = 10_000
# A row carries an input of up to 256 KiB; an answer has at most 64 MiB.
_QUEUE_PAGE: Final = 200
# A filter that matches nothing must not read a queue of millions of rows.
_QUEUE_PAGES_MAX: Final = 500
# The field that a queue row cannot tell of an execution that had started before it was given up.
_COORDINATORS_TELL: Final = "start_time"


class Page(NamedTuple):
    records: Sequence[Record]
    # The number of records found. One more than the page size was asked for.
    found: int


class Executions:
    def __init__(self, reads: ExecutionReads, queue: ExecutionQueue, watches: Watches, clock: Clock) -> None:
        self._reads = reads
        self._queue = queue
        self._watches = watches
        self._clock = clock
        # Executions that had not been given up at this time; oldest first.
        self._going: OrderedDict[str, float] = OrderedDict()

    async def find(self, workspace: str, execution_id: str) -> Record:
        if not is_execution_id(execution_id):
            raise refusals.execution_not_found(execution_id)
        record = await self._started(execution_id)
        if record is None:
            queued = await self._queue.queued([execution_id])
            record = await self._started(execution_id)
            if record is None and queued:
                record = record_of(queued[0])
        if record is not None and record.execution.state not in FINAL:
            record = await self._given_up_soon(record)
        return _own(workspace, record, execution_id)

    async def given_up(self, execution_ids: Sequence[str]) -> Sequence[Record]:
        """The records of those that dispatchers have given up, with their end."""
        failed = {
            queued.start.execution_id: queued
            for queued in await self._queue.queued(execution_ids)
            if queued.state == queue_pb2.Queued.FAILED
        }
        if not failed:
            return ()
        # A caller who was told of the end must not see it running afterwards.
        for execution_id in failed:
            self._going.pop(execution_id, None)
        started = {each.execution.id: each for each in await self._reads.executions(list(failed))}
        return [_ended(started.get(id_), queued) for id_, queued in failed.items()]

    async def _given_up_soon(self, record: Record) -> Record:
        """The record with its end if dispatchers have given it up. While dispatchers are away it is returned as it
        is."""
        execution_id = record.execution.id
        asked_at, known_at = self._clock.monotonic(), self._going.get(execution_id)
        if known_at is not None and asked_at - known_at < _GOING_SECONDS:
            return record
        try:
            async with asyncio.timeout(_GIVEN_UP_SECONDS):
                for ended in await self.given_up([execution_id]):
                    return ended
        except (DependencyUnavailable, Refusal, TimeoutError):
            asked_at = self._clock.monotonic()  # the next read does not wait again
        self._going[execution_id] = asked_at
        self._going.move_to_end(execution_id)
        if len(self._going) > _GOING_MAX:
            self._going.popitem(last=False)
        return record

    async def page(
        self, workspace: str, filters: Sequence[Filter], from_id: str, size: int, *, ascending: bool
    ) -> Page:
        by_id = {
            record.execution.id: record
            for record in await self._waiting(workspace, filters, from_id, size + 1, ascending=ascending)
        }
        asked = ExecutionQuery(workspace, filters, from_id, ascending, limit=size + 1)
        started = await self._going_or_final(asked)
        by_id.update((record.execution.id, record) for record in started if record.workspace == workspace)
        merged = sorted(by_id.values(), key=lambda record: record.execution.id, reverse=not ascending)
        return Page(merged[:size], len(merged))

    async def wait(self, watch: Watch, seconds: float) -> Record | None:
        """The final record. None: the time was over first."""
        end = self._clock.monotonic() + seconds
        while (remaining := end - self._clock.monotonic()) > 0:
            update = await watch.next(remaining)
            if update is not None and update.WhichOneof("update") == "final":
                return update.final
        return None

    async def cancel(self, workspace: str, execution_id: str, reason: str, caller: str) -> Record:
        # An execution that was given up cannot be cancelled, so this is checked again.
        self._going.pop(execution_id, None)
        record = await self.find(workspace, execution_id)
        if record.execution.state in FINAL:
            return _cancelled(record)
        watch = self._watches.open(execution_id)
        try:
            if await self._deliver_cancel(workspace, execution_id, reason, caller):
                crash_point("api.cancel.after_deliver")
                final = await self.wait(watch, CANCEL_SECONDS)
                if final is not None:
                    return _cancelled(final)
            record = await self.find(workspace, execution_id)
            return _cancelled(record) if record.execution.state in FINAL else record
        finally:
            watch.close()

    async def _deliver_cancel(self, workspace: str, execution_id: str, reason: str, caller: str) -> bool:
        crash_point("api.cancel.before_deliver")
        return await self._queue.cancel(workspace, execution_id, reason, caller, self._clock.epoch_ns())

    async def _started(self, execution_id: str) -> Record | None:
        found = await self._reads.executions([execution_id])
        return found[0] if found else None

    async def _going_or_final(self, asked: ExecutionQuery) -> list[Record]:
        """Executions of the coordinators without those that were given up, which `_waiting` finds in the queue."""
        found: list[Record] = []
        while len(found) < asked.limit:
            batch = await self._reads.execution_page(asked)
            going = [record.execution.id for record in batch if record.execution.state not in FINAL]
            gone = {record.execution.id for record in await self.given_up(going)} if going else set()
            found += [record for record in batch if record.execution.id not in gone]
            # A peer returns at most PAGE_SIZE_MAX records, so a full batch may not be the last.
            if len(batch) < min(asked.limit, PAGE_SIZE_MAX):
                break
            asked = asked._replace(from_id=batch[-1].execution.id)
        return found[: asked.limit]

    async def _waiting(
        self, workspace: str, filters: Sequence[Filter], from_id: str, wanted: int, *, ascending: bool
    ) -> list[Record]:
        """The first `wanted` rows of the queue that match."""
        found: list[Record] = []
        for _ in range(_QUEUE_PAGES_MAX):
            rows = await self._queue.page(workspace, from_id, _QUEUE_PAGE, ascending=ascending)
            fitting = [row for row in rows if row.start.workspace == workspace and _may_fit(filters, row)]
            found += [
                record for record in await self._unknown_there(fitting) if matches(filters, fields_of(record.execution))
            ]
            if len(rows) < _QUEUE_PAGE or len(found) >= wanted:
                return found[:wanted]
            from_id = rows[-1].start.execution_id
        raise DependencyUnavailable("the queue", "too long to be searched with this filter", retry_after=5.0)

    async def _unknown_there(self, waiting: Sequence[queue_pb2.Queued]) -> list[Record]:
        """Rows without those that a coordinator has started: such a row is older than the coordinator's record, and may
        match a filter that the record does not match."""
        if not waiting:
            return []
        started = await self._reads.executions([row.start.execution_id for row in waiting])
        known = {record.execution.id: record for record in started}
        found: list[Record] = []
        for row in waiting:
            record = known.get(row.start.execution_id)
            is_given_up = row.state == queue_pb2.Queued.FAILED
            if record is None or (is_given_up and record.execution.state not in FINAL):
                found.append(_ended(record, row))
        return found


def _may_fit(filters: Sequence[Filter], queued: queue_pb2.Queued) -> bool:
    """Whether the row may match, judged without asking coordinators."""
    is_untold = queued.state == queue_pb2.Queued.FAILED and asks_of(filters, _COORDINATORS_TELL)
    return is_untold or matches(filters, fields_of(execution_of(queued)))


def _ended(started: Record | None, queued: queue_pb2.Queued) -> Record:
    if started is None:
        return record_of(queued)
    return started if started.execution.state in FINAL else given_up(started, queued)


def _own(workspace: str, record: Record | None, execution_id: str) -> Record:
    if record is None or record.workspace != workspace:
        raise refusals.execution_not_found(execution_id)
    return record


def _cancelled(record: Record) -> Record:
    """The final record, or a refusal if it ended otherwise than by a cancel."""
    if record.execution.state != _State.CANCELLED:
        raise refusals.execution_final(record.execution.id, _State.State.Name(record.execution.state))
    return record
