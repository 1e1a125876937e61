"""Reads what a fork may take over from its origin, before the fork starts (core/forking.py).

The start order names the origin and the sequence number of an event. The origin is walked up to this event, so whoever
is granted the fork finds the same, however often it is granted and whatever has become of the origin since.

Stored outputs are kept as long as the executions of their month, and a fork may be of a later month than its origin. So
the fork gets copies in its own month. The store names a value by its hash, so a second try is harmless. Only what the
fork really takes over is copied: its start is tried out first, on a state that is thrown away.

The fork starts in one commit. So outputs are also stored when they would make that commit too large.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from services.chassis.blobs import BlobRef, NamesBlob, month_of
from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.fair_line import FairLine, NoTurn
from services.coordinator.app.journal_walks import JournalWalks
from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.app.ports import Row
from services.coordinator.core.commands import FinishedWork
from services.coordinator.core.definition import Definition
from services.coordinator.core.events import WorkTakenOver
from services.coordinator.core.forking import finished_work
from services.coordinator.core.handlers import handle
from services.coordinator.core.state import Execution
from services.coordinator.core.values import Origin, OutputRef, Value

# Of the outputs that the journal of a fork takes over inline.
INLINE_BYTES_IN_ALL: Final = 8 * 1024 * 1024
# Forks that are prepared at once: of all workspaces, and of each. The outputs of an origin are in memory meanwhile.
_AT_ONCE: Final = 4
_AT_ONCE_OF_EACH: Final = 2


class OriginGone(Exception):
    """There is no such execution any more, or its journal cannot be read."""


class OriginNotRead(Exception):
    """A newer version wrote an event of the origin. A newer coordinator may read it."""


class ExecutionRows(Protocol):
    async def executions(self, execution_ids: Sequence[str]) -> Sequence[Row]: ...


class OutputCopies(Protocol):
    async def put(self, value: bytes, owner: str, month: str) -> BlobRef: ...
    async def put_parts(self, parts: AsyncIterator[bytes], bytes_max: int, owner: str, month: str) -> BlobRef: ...
    def get_parts(self, ref: NamesBlob, owner: str) -> AsyncIterator[bytes]: ...


class ForkOrigins:
    def __init__(self, rows: ExecutionRows, walks: JournalWalks, store: OutputCopies) -> None:
        self._rows = rows
        self._walks = walks
        self._store = store
        self._line = FairLine(_AT_ONCE, places_of_each=_AT_ONCE_OF_EACH)

    async def prepare(self, owned: OwnedExecution) -> None:
        """Completes the start of a fork. Raises OriginGone or OriginNotRead; BlobMissing or OSError; DefinitionRefused;
        or DependencyUnavailable, and then the caller tries again."""
        try:
            async with self._line.turn(owned.start.origin.workspace, None):
                await self._prepare(owned)
        except NoTurn as crowded:
            raise DependencyUnavailable("a place to prepare a fork", str(crowded)) from None

    async def _prepare(self, owned: OwnedExecution) -> None:
        assert owned.version is not None
        definition, start = owned.version.definition, owned.start
        finished = finished_work(await self._origin(start.origin), start.origin.from_node)
        trial = Execution(owned.execution_id, definition)
        tried = handle(trial, replace(start, finished=finished), start.grant_time)
        names = [event.key.node for event in tried.events if isinstance(event, WorkTakenOver)]
        start.finished = await self._kept(owned, definition, {name: finished[name] for name in names})

    async def _origin(self, asked: Origin) -> Execution:
        rows = await self._rows.executions([asked.origin_execution_id])
        if not rows or rows[0]["workspace"] != asked.workspace:
            raise OriginGone(asked.origin_execution_id)
        origin = await self._walks.state(rows[0], asked.origin_seq)
        if origin is None:
            raise OriginGone(asked.origin_execution_id)
        if origin.seq < asked.origin_seq:
            raise OriginNotRead(asked.origin_execution_id)
        return origin

    async def _kept(
        self, owned: OwnedExecution, definition: Definition, found: Mapping[str, FinishedWork]
    ) -> dict[str, FinishedWork]:
        """The same, with outputs that the store keeps as long as the fork."""
        kept: dict[str, FinishedWork] = {}
        room = INLINE_BYTES_IN_ALL
        for node, work in found.items():
            output = work.output
            # The core reads what nodes have set, which is small.
            if isinstance(output, bytes) and node not in definition.setters:
                room -= len(output)
                output = output if room >= 0 else await self._stored(owned, output)
            elif isinstance(output, OutputRef):
                output = await self._stored(owned, output)
            kept[node] = work._replace(output=output)
        return kept

    async def _stored(self, owned: OwnedExecution, output: Value) -> OutputRef:
        workspace, month = owned.start.origin.workspace, month_of(owned.execution_id)
        if not isinstance(output, OutputRef):
            return OutputRef(*await self._store.put(output, workspace, month))
        if month == month_of(owned.start.origin.origin_execution_id):
            return output
        parts = self._store.get_parts(output, workspace)
        return OutputRef(*await self._store.put_parts(parts, output.size_bytes, workspace, month))
