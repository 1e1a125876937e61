"""Replays journals: those that are stored here, and exported ones (core/replaying.py has the rules).

Hazard: a journal may have 100,000 events, and an exported one comes from anybody. So a replay rests every few
milliseconds, when the event loop does other work, and few journals are replayed at once. What an exported journal makes
of the state is thrown away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from services.chassis.grpc.errors import Refusal
from services.chassis.process.clock import Clock
from services.chassis.process.fair_line import FairLine, NoTurn
from services.chassis.process.rests import Rests
from services.coordinator.app.ports import Definitions, Row, Standing, StoredEvents
from services.coordinator.core.definition import Definition
from services.coordinator.core.events import Event
from services.coordinator.core.recorded_rows import RowName
from services.coordinator.core.replaying import NotReplayable, Replay, Replayed

_APPENDS_PER_READ: Final = 200
# The state of an execution with many events takes some hundred megabytes, and a copy of it as much again.
_AT_ONCE: Final = 3
_WAIT_SECONDS: Final = 60.0
# An execution that goes on may change while its rows are read.
_TRIES: Final = 5

RecordedRows = AsyncIterator[tuple[RowName, Mapping[str, Any]]]


class StoredJournal(StoredEvents, Protocol):
    async def standings(self, execution_ids: Sequence[str]) -> Mapping[str, Standing]: ...
    def recorded_rows(self, execution_id: str) -> RecordedRows:
        """The rows of the execution, of its runs, approvals and dead letters, in their order."""
        ...


class Replays:
    def __init__(self, journals: StoredJournal, definitions: Definitions, clock: Clock) -> None:
        self._journals = journals
        self._clock = clock
        self._definitions = definitions
        self._line = FairLine(_AT_ONCE)

    @asynccontextmanager
    async def place(self, workspace: str) -> AsyncIterator[None]:
        """Whoever replays or imports an export has a place as long as anything of it is in memory. Workspaces take
        turns, and each has one place at most."""
        try:
            async with self._line.turn(workspace, _WAIT_SECONDS):
                yield
        except NoTurn:
            raise Refusal("REPLAYS_EXCEEDED", "other journals are being replayed; try again in a moment") from None

    async def of_stored(self, row: Row) -> Replayed:
        """The execution with this row."""
        async with self.place(row["workspace"]):
            version = await self._definitions.get(row["version_id"])
            return await self._compared(Replay(row["execution_id"], version.definition))

    async def of_export(
        self,
        execution_id: str,
        definition: Definition,
        parts: AsyncIterator[tuple[int, Event] | tuple[RowName, Mapping[str, Any]]],
    ) -> Replayed:
        """All events come before all rows. The caller has a place. Raises NotReplayable."""
        rests = Rests(self._clock)
        replay, comparison = Replay(execution_id, definition), None
        async for name, part in parts:
            if isinstance(name, int) and isinstance(part, Event):
                if comparison is not None:
                    raise NotReplayable(f"event {name} comes after the rows")
                await rests.through(replay.take(name, part))
            elif isinstance(name, tuple) and isinstance(part, Mapping):
                if comparison is None:
                    await rests.through(replay.finish())
                    comparison = replay.comparison()
                await rests.through(comparison.take(name, part))
            await rests.step()
        if comparison is not None:
            return await rests.through(comparison.result())
        await rests.through(replay.finish())
        return await rests.through(replay.uncompared())

    async def _compared(self, replay: Replay) -> Replayed:
        execution_id, rests = replay.execution.execution_id, Rests(self._clock)
        for _ in range(_TRIES):
            await self._fold(replay, rests)
            comparison = replay.comparison()
            async for name, recorded in self._journals.recorded_rows(execution_id):
                await rests.through(comparison.take(name, recorded))
                await rests.step()
            # A row and its events are written together, so all rows were as after the last event that was folded.
            standing = (await self._journals.standings([execution_id])).get(execution_id)
            if standing is None or standing.last_seq == replay.seq:
                return await rests.through(comparison.result())
        return await rests.through(replay.uncompared())

    async def _fold(self, replay: Replay, rests: Rests) -> None:
        """All events that are stored and not folded yet."""
        before = -1
        while replay.seq != before:
            before = replay.seq
            events = await self._journals.events(
                replay.execution.execution_id, after_seq=before, limit=_APPENDS_PER_READ
            )
            for _, seq, _, event in events:
                if not isinstance(event, Event):
                    raise Refusal("EVENTS_NOT_KNOWN", f"a newer coordinator has written event {seq}; ask that one")
                if seq > replay.seq:
                    await rests.through(replay.take(seq, event))
                await rests.step()
        await rests.through(replay.finish())
