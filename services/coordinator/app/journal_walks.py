"""Reads the journal of one execution, event by event, into the state that it adds up to.

This serves people who look back, and forks. It takes nothing over: the lease of the execution stays where it is. Where
only the state at an event is asked for, the walk begins at the newest snapshot before it.

Hazard: a journal may have 100,000 events, and one append thousands of them. So the event loop does other work between
two reads and after some hundred events, and few journals are walked at once. Workspaces take turns at these places.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final, NamedTuple, Protocol

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.fair_line import FairLine, NoTurn
from services.chassis.telemetry.logs import logger
from services.coordinator.app.ports import Definitions, Row, Snapshot, SnapshotDamaged, StoredEvents
from services.coordinator.core.definition import Definition
from services.coordinator.core.events import Event
from services.coordinator.core.fold import apply
from services.coordinator.core.state import Execution

log = logger(__name__)

_APPENDS_PER_READ: Final = 200
# Walks that are under way at once: of all workspaces, and of each.
_AT_ONCE: Final = 4
_AT_ONCE_OF_EACH: Final = 2
# So many events are applied before the event loop does other work.
_WITHOUT_PAUSE: Final = 200
# Larger snapshots are restored in a thread: that of 100,000 events takes most of a second.
RESTORED_AT_ONCE_BYTES: Final = 256 * 1024
_LAST: Final = 2**62


class Step(NamedTuple):
    """The state before an event, and the event."""

    execution: Execution
    event: Event
    seq: int


class WalkedJournal(StoredEvents, Protocol):
    async def snapshot_records(self, execution_id: str, as_of_seq: int) -> Sequence[Snapshot]:
        """The records of the newest snapshot that this version can read, of this event or an earlier one."""
        ...


# The state that the records of a snapshot add up to. Raises SnapshotDamaged.
Restore = Callable[[str, Definition, Sequence[Snapshot]], Execution]


class JournalWalks:
    def __init__(self, journal: WalkedJournal, definitions: Definitions, restore: Restore) -> None:
        self._journal = journal
        self._definitions = definitions
        self._restore = restore
        self._line = FairLine(_AT_ONCE, places_of_each=_AT_ONCE_OF_EACH)

    async def walk(self, row: Row) -> AsyncGenerator[Step, None]:
        """Each event of the execution with this row. It is applied when the caller asks for the next one. The walk ends
        before an event of a newer version."""
        async with self._place(row["workspace"]):
            version = await self._definitions.get(row["version_id"])
            async with aclosing(self._steps(Execution(row["execution_id"], version.definition))) as steps:
                async for step in steps:
                    yield step

    async def state(self, row: Row, as_of_seq: int) -> Execution | None:
        """The execution as it was after this event, or before the first event of a newer version. None: it has no
        events."""
        async with self._place(row["workspace"]):
            version = await self._definitions.get(row["version_id"])
            execution = await self._before(row["execution_id"], version.definition, as_of_seq)
            async for _ in self._steps(execution, as_of_seq):
                pass
        return execution if execution.seq else None

    async def _before(self, execution_id: str, definition: Definition, as_of_seq: int) -> Execution:
        """The newest state that is stored, at this event or earlier."""
        if records := await self._journal.snapshot_records(execution_id, as_of_seq):
            try:
                if sum(len(each.data) for each in records) > RESTORED_AT_ONCE_BYTES:
                    return await asyncio.to_thread(self._restore, execution_id, definition, records)
                return self._restore(execution_id, definition, records)
            except SnapshotDamaged as damaged:
                log.error("a damaged snapshot is passed over", execution_id=execution_id, error=str(damaged))
        return Execution(execution_id, definition)

    async def _steps(self, execution: Execution, as_of_seq: int = _LAST) -> AsyncGenerator[Step, None]:
        while execution.seq != as_of_seq:
            seen = execution.seq
            stored = await self._journal.events(execution.execution_id, after_seq=seen, limit=_APPENDS_PER_READ)
            for _, seq, _, event in stored:
                if seq > as_of_seq or not isinstance(event, Event):
                    return
                if seq > execution.seq:
                    yield Step(execution, event, seq)
                    apply(execution, event)
                    if seq % _WITHOUT_PAUSE == 0:
                        await asyncio.sleep(0)
            if execution.seq == seen:
                return

    @asynccontextmanager
    async def _place(self, workspace: str) -> AsyncIterator[None]:
        try:
            async with self._line.turn(workspace, None):
                yield
        except NoTurn as crowded:
            raise DependencyUnavailable("a place to read a journal", str(crowded)) from None
