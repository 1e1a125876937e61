"""The events of one execution in sequence, without gaps or repeats, across failures of any process.

The journal is the truth, and pushed updates are a fast path. A pushed event that is next in sequence is passed on; one
that was seen before is dropped. A gap, a lost stream or a long silence makes this read the journal from the last event.
So a lost push costs only time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from services.api.app.executions import FINAL, Executions
from services.api.app.ports import ExecutionReads, Watches
from services.api.app.queued import failure_event, was_given_up
from windlass.coordinator.v1 import reads_pb2

# The journal is read after this time without an update.
SILENCE_SECONDS: Final = 5.0
# An event carries up to 256 KiB; an answer has at most 64 MiB.
EVENTS_PER_READ: Final = 200


class EventWatcher:
    def __init__(
        self,
        executions: Executions,
        reads: ExecutionReads,
        watches: Watches,
        *,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._executions = executions
        self._reads = reads
        self._watches = watches
        self._silence_seconds = silence_seconds

    async def follow(self, workspace: str, execution_id: str, after_seq: int) -> AsyncIterator[reads_pb2.EventRecord]:
        """Every event after `after_seq`; ends after the one that made the execution final."""
        await self._executions.find(workspace, execution_id)
        watch = self._watches.open(execution_id, after_seq=after_seq, events=True)
        seen = after_seq
        try:
            is_over = False
            while not is_over:
                async for record in self._journal(execution_id, seen):
                    seen = record.event.seq
                    is_over = record.event.state in FINAL
                    yield record
                if is_over or await self._has_ended(workspace, execution_id, seen):
                    break
                while (update := await watch.next(self._silence_seconds)) is not None:
                    kind = update.WhichOneof("update")
                    if kind == "event" and update.event.event.seq <= seen:
                        continue
                    if kind != "event" or update.event.event.seq > seen + 1:
                        break
                    seen = update.event.event.seq
                    yield update.event
                    if update.event.event.state in FINAL:
                        is_over = True
                        break
            if not is_over:
                ended = await self._executions.find(workspace, execution_id)
                if was_given_up(ended) and ended.execution.last_seq > seen:
                    yield failure_event(ended)
        finally:
            watch.close()

    async def _journal(self, execution_id: str, after_seq: int) -> AsyncIterator[reads_pb2.EventRecord]:
        while True:
            request = reads_pb2.ListEventsRequest(execution_id=execution_id, after_seq=after_seq, limit=EVENTS_PER_READ)
            events = (await self._reads.events(request)).events
            for record in events:
                after_seq = record.event.seq
                yield record
            if len(events) < EVENTS_PER_READ:
                return

    async def _has_ended(self, workspace: str, execution_id: str, seen: int) -> bool:
        """Whether the execution is final and all its events were seen, perhaps in an earlier call."""
        record = await self._executions.find(workspace, execution_id)
        return record.execution.state in FINAL and (record.execution.last_seq <= seen or was_given_up(record))
