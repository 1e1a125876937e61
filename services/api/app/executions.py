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
from typing import Final
from uuid import uuid4

from services.api.app import refusals
from services.api.app.identifiers import digest_of, is_execution_id
from services.api.app.ports import (
    PAGE_SIZE_MAX,
    QUEUE_ROWS_MAX,
    ExecutionPage,
    ExecutionQuery,
    ExecutionQueue,
    ExecutionReads,
    ExecutionView,
    Watch,
    Watches,
)
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.process.clock import Clock
from services.chassis.process.crash import crash_point

CANCEL_SECONDS: Final = 2.0
# How long the read of a running execution waits to learn whether it was given up. Nearly all were not.
_GIVEN_UP_SECONDS: Final = 1.0
# For this time an execution that was not given up is not checked again, so that reading it often costs dispatchers
# nothing, and does not wait for them while they are away. Its end may be seen this late.
_GOING_SECONDS: Final = 2.0
# The number of such executions that are remembered.
_GOING_MAX: Final = 10_000
# A filter that matches nothing must not read a queue of millions of rows.
_QUEUE_PAGES_MAX: Final = 500


class Executions:
    def __init__(self, reads: ExecutionReads, queue: ExecutionQueue, watches: Watches, clock: Clock) -> None:
        self._reads = reads
        self._queue = queue
        self._watches = watches
        self._clock = clock
        # Executions that had not been given up at this time; oldest first.
        self._going: OrderedDict[str, float] = OrderedDict()

    async def find(self, workspace: str, execution_id: str) -> ExecutionView:
        if not is_execution_id(execution_id):
            raise refusals.execution_not_found(execution_id)
        execution = await self._started(execution_id)
        if execution is None:
            queued = await self._queue.queued([execution_id])
            execution = await self._started(execution_id)
            if execution is None and queued:
                execution = queued[0]
        if execution is not None and not (execution.is_final or execution.is_imported):
            execution = await self._given_up_soon(execution)
        return _own(workspace, execution, execution_id)

    async def find_for_command(self, workspace: str, execution_id: str) -> ExecutionView:
        """The same, unless nothing can change the execution."""
        execution = await self.find(workspace, execution_id)
        if execution.is_imported:
            raise refusals.execution_imported(execution_id)
        return execution

    async def given_up(self, execution_ids: Sequence[str]) -> Sequence[ExecutionView]:
        """Return the executions that dispatchers have given up, with their end."""
        failed = {row.id: row for row in await self._queue.queued(execution_ids) if row.is_given_up}
        if not failed:
            return ()
        # A caller who was told of the end must not see it running afterwards.
        for execution_id in failed:
            self._going.pop(execution_id, None)
        started = {each.id: each for each in await self._reads.executions(list(failed))}
        return [_ended(started.get(id_), row) for id_, row in failed.items()]

    async def _given_up_soon(self, execution: ExecutionView) -> ExecutionView:
        """The execution with its end if dispatchers have given it up. While dispatchers are away it is returned as it
        is."""
        asked_at, known_at = self._clock.monotonic(), self._going.get(execution.id)
        if known_at is not None and asked_at - known_at < _GOING_SECONDS:
            return execution
        try:
            async with asyncio.timeout(_GIVEN_UP_SECONDS):
                for ended in await self.given_up([execution.id]):
                    return ended
        except (DependencyUnavailable, Refusal, TimeoutError):
            asked_at = self._clock.monotonic()  # the next read does not wait again
        self._going[execution.id] = asked_at
        self._going.move_to_end(execution.id)
        if len(self._going) > _GOING_MAX:
            self._going.popitem(last=False)
        return execution

    async def page(self, asked: ExecutionQuery) -> ExecutionPage:
        """At least `limit` executions, if they exist and are not cut."""
        waiting = await self._waiting(asked)
        started, cut_at = await self._going_or_final(asked)
        if cut_at:
            # Between the cut and those behind it there are more that have started.
            waiting = [each for each in waiting if (each.id < cut_at if asked.ascending else each.id > cut_at)]
        by_id = {execution.id: execution for execution in waiting}
        by_id.update((execution.id, execution) for execution in started if execution.workspace == asked.workspace)
        found = sorted(by_id.values(), key=lambda execution: execution.id, reverse=not asked.ascending)
        return ExecutionPage(found, bool(cut_at))

    def forget_going(self, execution_id: str) -> None:
        """Ask dispatchers at the next read whether they have given it up, also if they were asked a moment ago."""
        self._going.pop(execution_id, None)

    async def wait(self, watch: Watch, end: float) -> ExecutionView | None:
        """The final execution. None: the end, on the monotonic clock, came first."""
        while (remaining := end - self._clock.monotonic()) > 0:
            if isinstance(update := await watch.next(remaining), ExecutionView):
                return update
        return None

    async def cancel(self, workspace: str, execution_id: str, reason: str, caller: str) -> ExecutionView:
        # An execution that was given up cannot be cancelled, so this is checked again.
        self.forget_going(execution_id)
        execution = await self.find_for_command(workspace, execution_id)
        if execution.is_final:
            return _cancelled(execution)
        watch = self._watches.open(execution_id)
        try:
            crash_point("api.cancel.before_deliver")
            message_id = f"cancel:{execution_id}:{uuid4()}"
            if await self._queue.cancel(workspace, execution, message_id, reason, caller, self._clock.epoch_ns()):
                crash_point("api.cancel.after_deliver")
                final = await self.wait(watch, self._clock.monotonic() + CANCEL_SECONDS)
                if final is not None:
                    return _cancelled(final)
            else:
                self.forget_going(execution_id)
            execution = await self.find(workspace, execution_id)
            return _cancelled(execution) if execution.is_final else execution
        finally:
            watch.close()

    async def order_cancel(self, workspace: str, execution_id: str, request_id: str, reason: str, caller: str) -> None:
        """The same, without waiting for the end."""
        execution = await self.find_for_command(workspace, execution_id)
        if not execution.is_final:
            message_id, now_ns = cancel_id(execution_id, request_id, reason), self._clock.epoch_ns()
            if await self._queue.cancel(workspace, execution, message_id, reason, caller, now_ns):
                return
            self.forget_going(execution_id)
            execution = await self.find(workspace, execution_id)
        if execution.is_final:
            _cancelled(execution)

    async def _started(self, execution_id: str) -> ExecutionView | None:
        found = await self._reads.executions([execution_id])
        return found[0] if found else None

    async def _going_or_final(self, asked: ExecutionQuery) -> tuple[list[ExecutionView], str]:
        """Executions of the coordinators without those that were given up, which `_waiting` finds in the queue. The
        text is the id at which the page was cut ("": it was not)."""
        found: list[ExecutionView] = []
        while len(found) < asked.limit:
            batch, is_cut = await self._reads.execution_page(asked)
            going = [execution.id for execution in batch if not execution.is_final]
            gone = {execution.id for execution in await self.given_up(going)} if going else set()
            found += [execution for execution in batch if execution.id not in gone]
            if is_cut and found:
                return found, batch[-1].id
            # A peer returns at most PAGE_SIZE_MAX executions, so a full batch may not be the last.
            if not is_cut and len(batch) < min(asked.limit, PAGE_SIZE_MAX):
                break
            asked = asked._replace(from_id=batch[-1].id)
        return found[: asked.limit], ""

    async def _waiting(self, asked: ExecutionQuery) -> list[ExecutionView]:
        """The first rows of the queue that match."""
        workspace, filter_, from_id = asked.workspace, asked.filter, asked.from_id
        found: list[ExecutionView] = []
        for _ in range(_QUEUE_PAGES_MAX):
            rows = await self._queue.page(workspace, from_id, QUEUE_ROWS_MAX, ascending=asked.ascending)
            fitting = [row for row in rows if row.workspace == workspace and filter_.may_match(row)]
            found += [execution for execution in await self._unknown_there(fitting) if filter_.matches(execution)]
            if len(rows) < QUEUE_ROWS_MAX or len(found) >= asked.limit:
                return found[: asked.limit]
            from_id = rows[-1].id
        raise DependencyUnavailable("the queue", "too long to be searched with this filter", retry_after=5.0)

    async def _unknown_there(self, waiting: Sequence[ExecutionView]) -> list[ExecutionView]:
        """Rows without those that a coordinator has started: such a row is older than the coordinator's record, and may
        match a filter that the record does not match."""
        if not waiting:
            return []
        known = {each.id: each for each in await self._reads.executions([row.id for row in waiting])}
        found: list[ExecutionView] = []
        for row in waiting:
            started = known.get(row.id)
            if started is None or (row.is_given_up and not started.is_final):
                found.append(_ended(started, row))
        return found


def cancel_id(execution_id: str, request_id: str, reason: str = "") -> str:
    """The message id of a cancel that may be given again under its request id. It ends with a digest of the content, as
    that of any command: the coordinator puts it on record, and carries it out once."""
    return f"cancel:{execution_id}:{request_id}#{digest_of(reason.encode())}"


def _ended(started: ExecutionView | None, row: ExecutionView) -> ExecutionView:
    """The execution of a row that was given up, which its coordinator may have ended nevertheless."""
    if started is None:
        return row
    if started.is_final:
        return started
    return started._replace(state=row.state, last_seq=started.last_seq + 1, row=row.row)


def _own(workspace: str, execution: ExecutionView | None, execution_id: str) -> ExecutionView:
    if execution is None or execution.workspace != workspace:
        raise refusals.execution_not_found(execution_id)
    return execution


def _cancelled(execution: ExecutionView) -> ExecutionView:
    """The final execution, or a refusal if it ended otherwise than by a cancel."""
    if execution.state != "CANCELLED":
        raise refusals.execution_final(execution.id, execution.state)
    return execution
