"""The events of one execution in sequence, without gaps or repeats, across failures of any process.

The journal is the truth, and pushed updates are a fast path. A pushed event that is next in sequence is passed on; one
that was seen before is dropped. A gap, a lost stream or a long silence makes this read the journal from the last event.
So a lost push costs only time.

Coordinators do not push the end of an execution that was given up, because it is a row in the dispatchers' queue. So a
loop asks for these ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from services.api.app.executions import Executions
from services.api.app.ports import EventView, ExecutionReads, Watch, Watches
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.grpc.shares import Shares
from services.chassis.telemetry.logs import logger

log = logger(__name__)

# The journal is read after this time without an update.
SILENCE_SECONDS: Final = 5.0
# A coordinator cuts a list of large events. An event carries up to 256 KiB.
EVENTS_PER_READ: Final = 200
# Watches that may have such a list which their callers have not read to its end. A workspace alone gets half of these
# places. Any other watch reads one event after the other.
LISTS_HELD_MAX: Final = 64
# An execution is given up after seconds of retries, so its watches may end a little later.
GIVEN_UP_SECONDS: Final = 2.0


class EventWatcher:
    def __init__(self, executions: Executions, reads: ExecutionReads, watches: Watches) -> None:
        self._executions = executions
        self._reads = reads
        self._watches = watches
        self._places = Shares(LISTS_HELD_MAX)

    async def follow(self, workspace: str, execution_id: str, after_seq: int) -> AsyncGenerator[EventView, None]:
        """Every event after `after_seq`; ends after the one that made the execution final."""
        await self._executions.find(workspace, execution_id)
        watch = self._watches.open(execution_id, after_seq=after_seq, events=True)
        try:
            async for event in self._events(workspace, execution_id, after_seq, watch):
                yield event
                if event.is_last and await self._is_over(workspace, execution_id, event.seq):
                    return
        finally:
            watch.close()

    async def _is_over(self, workspace: str, execution_id: str, last_seq: int) -> bool:
        """False: it was reopened after this end."""
        return (await self._executions.find(workspace, execution_id)).last_seq <= last_seq

    async def _events(self, workspace: str, execution_id: str, seen: int, watch: Watch) -> AsyncIterator[EventView]:
        while True:
            before = seen
            async for event in self._journal(workspace, execution_id, seen):
                seen = event.seq
                yield event
            execution = await self._executions.find(workspace, execution_id)
            if before < seen < execution.last_seq:
                # The list was cut, because its events are large, or there are new ones.
                continue
            if execution.is_given_up:
                if execution.last_seq > seen:
                    yield EventView(execution.last_seq, is_last=True, record=execution)
                return
            if (execution.is_final or execution.is_imported) and execution.last_seq <= seen:
                # All its events were seen, perhaps in an earlier call.
                return
            while isinstance(update := await watch.next(SILENCE_SECONDS), EventView) and update.seq <= seen + 1:
                if update.seq > seen:
                    seen = update.seq
                    yield update

    async def _journal(self, workspace: str, execution_id: str, after_seq: int) -> AsyncIterator[EventView]:
        while True:
            has_place = self._places.take(workspace)
            try:
                limit = EVENTS_PER_READ if has_place else 1
                events = await self._reads.events(execution_id, after_seq, limit)
                for event in events:
                    after_seq = event.seq
                    yield event
            finally:
                if has_place:
                    self._places.give_back(workspace)
            if len(events) < limit:
                return

    async def run(self) -> None:
        """End the watches of executions that were given up."""
        while True:
            await asyncio.sleep(GIVEN_UP_SECONDS)
            waiting = self._watches.waiting_since(asyncio.get_running_loop().time() - GIVEN_UP_SECONDS)
            try:
                ended = await self._executions.given_up(waiting) if waiting else ()
                for execution in ended:
                    self._watches.final(execution)
            except (DependencyUnavailable, Refusal) as failure:
                log.info("executions that were given up cannot be read now", error=str(failure))
