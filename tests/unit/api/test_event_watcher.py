"""A watch gives each event once and in order, even if pushes come late, twice, in disorder or not at all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.app import ports
from services.api.app.executions import Executions
from services.api.app.watching import EVENTS_PER_READ, EventWatcher
from services.api.peers import coordinators, dispatchers
from services.api.rpc import translate
from services.chassis.grpc.errors import Refusal
from tests.support.manual_clock import ManualClock
from windlass.api.v1 import resources_pb2
from windlass.coordinator.v1 import reads_pb2
from windlass.dispatcher.v1 import queue_pb2
from windlass.types.v1 import start_pb2

ID = "01a1ef02-cd5c-7fc1-ac68-79b46e7a0574"
Execution = resources_pb2.Execution


class MemoryJournal:
    """The coordinators, the queue and the watch streams in one: the committed events, and the pushes of them."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.committed = 0
        # The news of the watch in order of arrival: a sequence, a cut, or the final record.
        self.told: deque[int | str | None] = deque()
        # The number of events that are committed before each item of news.
        self.growth: deque[int] = deque()
        self.queue_state: Any = None
        # A list of events has at most so many, whatever is asked for.
        self.cut = length

    def event(self, seq: int) -> ports.EventView:
        state = Execution.SUCCESS if seq == self.length else Execution.RUNNING
        event = resources_pb2.Event(seq=seq, type="Happened", state=state)
        return coordinators.event_of(reads_pb2.EventRecord(event=event))

    def execution(self) -> ports.ExecutionView:
        state = Execution.SUCCESS if self.committed == self.length else Execution.RUNNING
        execution = Execution(id=ID, state=state, last_seq=self.committed)
        return coordinators.execution_of(reads_pb2.ExecutionRecord(execution=execution, workspace="team"))

    async def executions(self, execution_ids: Sequence[str]) -> Sequence[ports.ExecutionView]:
        return [self.execution()] if self.committed else []

    async def events(
        self, execution_id: str, after_seq: int, limit: int, *, as_of_seq: int = 0
    ) -> Sequence[ports.EventView]:
        last = min(self.committed, after_seq + min(limit, self.cut))
        return [self.event(seq) for seq in range(after_seq + 1, last + 1)]

    async def queued(self, execution_ids: Sequence[str]) -> Sequence[ports.ExecutionView]:
        if self.queue_state is None:
            return []
        order = start_pb2.StartOrder(execution_id=ID, workspace="team")
        row = queue_pb2.Queued(start=order, state=self.queue_state, failure_reason="WORKFLOW_NOT_FOUND")
        return [dispatchers.execution_of(row)]

    def open(self, execution_id: str, **_: Any) -> MemoryJournal:
        return self

    async def next(self, seconds: float) -> ports.EventView | ports.ExecutionView | None:
        """In a silence the rest happens, and only the journal tells of it."""
        await asyncio.sleep(0)
        grown = self.growth.popleft() if self.growth else self.length
        self.committed = min(self.length, self.committed + grown)
        told = self.told.popleft() if self.told else None
        if told is None:
            return None
        if told == "final":
            return self.execution()
        assert isinstance(told, int)
        # Nothing is pushed before it is committed.
        return self.event(max(1, min(told, self.committed)))

    def close(self) -> None: ...

    async def page(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a watch reads no lists")

    execution_page = requests = modules = page
    name = ""

    def waiting_since(self, time: float) -> Sequence[str]:
        return ()

    def final(self, execution: ports.ExecutionView) -> None: ...

    async def cancel(self, *_: Any) -> bool:
        raise AssertionError("a watch commands nothing")


def watcher(journal: MemoryJournal) -> EventWatcher:
    executions = Executions(journal, journal, journal, ManualClock())
    return EventWatcher(executions, journal, journal)


async def followed(journal: MemoryJournal, after_seq: int = 0) -> list[int]:
    return [event.seq async for event in watcher(journal).follow("team", ID, after_seq)]


pushes = st.lists(st.integers(1, 30) | st.none() | st.just("final"), max_size=60)


@given(
    length=st.integers(1, 30),
    told=pushes,
    growth=st.lists(st.integers(0, 5), max_size=60),
    already=st.integers(0, 30),
    after_seq=st.integers(0, 31),
)
def test_sequence_has_no_gap_and_no_repeat(
    length: int, told: list[Any], growth: list[int], already: int, after_seq: int
) -> None:
    journal = MemoryJournal(length)
    journal.committed = min(max(already, 1), length)
    journal.told.extend(told)
    journal.growth.extend(growth)
    assert asyncio.run(followed(journal, after_seq)) == list(range(after_seq + 1, length + 1))


async def test_long_journal_is_read_in_parts() -> None:
    journal = MemoryJournal(2 * EVENTS_PER_READ)
    journal.committed = journal.length
    assert await followed(journal) == list(range(1, journal.length + 1))


@pytest.mark.parametrize("queue_state", [None, queue_pb2.Queued.FAILED])
async def test_lists_that_are_cut_are_read_on_at_once(queue_state: Any) -> None:
    journal = MemoryJournal(8)
    journal.committed, journal.cut, journal.queue_state = 8 - bool(queue_state), 3, queue_state
    assert await followed(journal) == list(range(1, 9))


async def test_waiting_execution_is_followed_from_before_its_start() -> None:
    journal = MemoryJournal(3)
    journal.queue_state = queue_pb2.Queued.PENDING
    journal.growth.extend([0, 0, 1, 1])
    journal.told.extend([None, None, 1, 2])
    assert await followed(journal) == [1, 2, 3]


async def test_execution_that_is_never_admitted_has_one_event_and_then_an_end() -> None:
    journal = MemoryJournal(3)
    journal.queue_state = queue_pb2.Queued.FAILED
    (event,) = [translate.event(each) async for each in watcher(journal).follow("team", ID, 0)]
    assert (event.seq, event.type) == (1, "ExecutionNotAdmitted")
    assert event.state == Execution.FAILED
    assert await followed(journal, after_seq=1) == []


async def test_execution_that_is_given_up_ends_after_what_its_journal_has() -> None:
    journal = MemoryJournal(5)
    journal.committed = 3
    journal.queue_state = queue_pb2.Queued.FAILED
    events = [translate.event(each) async for each in watcher(journal).follow("team", ID, 1)]
    assert [each.seq for each in events] == [2, 3, 4]
    assert (events[-1].type, events[-1].state) == ("ExecutionGivenUp", Execution.FAILED)
    assert await followed(journal, after_seq=4) == []


@pytest.mark.parametrize("workspace", ["rival", ""])
async def test_foreign_execution_is_not_followed(workspace: str) -> None:
    journal = MemoryJournal(3)
    journal.committed = 3
    with pytest.raises(Refusal) as refused:
        async for _ in watcher(journal).follow(workspace, ID, 0):
            pass
    assert refused.value.reason == "EXECUTION_NOT_FOUND"
