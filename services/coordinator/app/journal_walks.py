"""Reads the journal of one execution, event by event, into the state that it adds up to.

This serves people who look back. It takes nothing over: the lease of the execution stays where it is.

Hazard: a journal may have 100,000 events. Between two reads the event loop does other work, and few journals are walked
at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

from services.coordinator.app.ports import Definitions, Row, StoredEvents
from services.coordinator.core.events import Event
from services.coordinator.core.fold import apply
from services.coordinator.core.state import Execution

_APPENDS_PER_READ: Final = 200
_AT_ONCE: Final = 4


class Step(NamedTuple):
    """The state before an event, and the event."""

    execution: Execution
    event: Event
    seq: int


class JournalWalks:
    def __init__(self, events: StoredEvents, definitions: Definitions) -> None:
        self._events = events
        self._definitions = definitions
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def walk(self, row: Row, as_of_seq: int = 0) -> AsyncGenerator[Step, None]:
        """Each event of the execution with this row, up to `as_of_seq` unless that is 0. It is applied when the caller
        asks for the next one. The walk ends before an event of a newer version."""
        async with self._places:
            version = await self._definitions.get(row["version_id"])
            execution = Execution(row["execution_id"], version.definition)
            while True:
                seen = execution.seq
                stored = await self._events.events(execution.execution_id, after_seq=seen, limit=_APPENDS_PER_READ)
                for _, seq, _, event in stored:
                    if 0 < as_of_seq < seq or not isinstance(event, Event):
                        return
                    if seq > execution.seq:
                        yield Step(execution, event, seq)
                        apply(execution, event)
                if execution.seq == seen:
                    return

    async def state(self, row: Row, as_of_seq: int) -> Execution | None:
        """The execution as it was after this event. None: it has no events."""
        execution = None
        async for step in self.walk(row, as_of_seq):
            execution = step.execution
        return execution
