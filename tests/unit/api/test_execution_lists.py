"""Two places make one list of executions, and one execution is found in either: none is lost or shown twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.api.app import ports
from services.api.app.executions import Executions
from services.api.app.ports import PAGE_SIZE_MAX, ExecutionQuery
from services.api.peers import coordinators, dispatchers
from services.api.rpc import translate
from services.api.rpc.filter_text import parse
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.coordinator.core.fold.answers import request_of
from tests.support.manual_clock import ManualClock
from windlass.api.v1 import resources_pb2
from windlass.coordinator.v1 import reads_pb2
from windlass.dispatcher.v1 import queue_pb2
from windlass.types.v1 import start_pb2

Execution = resources_pb2.Execution
QUEUED, STARTED, BOTH, FAILED, FOREIGN = "queued", "started", "both", "failed", "foreign"
# It had begun, and coordinators could not go on with it.
GIVEN_UP = "given up"


def id_of(number: int) -> str:
    return f"01a1ef02-cd5c-7fc1-ac68-{number:012x}"


class MemoryPlaces:
    """The queue and the coordinators; each execution is in one, or on its way in both."""

    def __init__(self, places: dict[str, str]) -> None:
        self.places = places
        # So many large executions fit into a page of the coordinators. 0: all do.
        self.fitting = 0
        self.cancelled: list[str] = []
        # The ids of the messages that cancel.
        self.messages: set[str] = set()
        self.seen_seqs: list[int] = []

    def _queued(self, execution_id: str) -> queue_pb2.Queued:
        place = self.places[execution_id]
        workspace = "rival" if place == FOREIGN else "team"
        failed = queue_pb2.Queued.FAILED
        state = {QUEUED: queue_pb2.Queued.PENDING, FAILED: failed, GIVEN_UP: failed}.get(
            place, queue_pb2.Queued.DISPATCHED
        )
        start = start_pb2.StartOrder(execution_id=execution_id, workspace=workspace, workflow="w")
        return queue_pb2.Queued(start=start, state=state, failure_reason="WORKFLOW_NOT_FOUND" * (place == FAILED))

    def started(self, execution_id: str) -> reads_pb2.ExecutionRecord:
        execution = Execution(id=execution_id, workflow="w", state=Execution.RUNNING, last_seq=7)
        return reads_pb2.ExecutionRecord(execution=execution, workspace="team")

    def _ids(self, *places: str) -> list[str]:
        return sorted(id_ for id_, place in self.places.items() if place in places)

    async def queued(self, execution_ids: Sequence[str]) -> Sequence[ports.ExecutionView]:
        known = self._ids(QUEUED, BOTH, FAILED, GIVEN_UP, FOREIGN)
        return [dispatchers.execution_of(self._queued(id_)) for id_ in execution_ids if id_ in known]

    async def page(self, workspace: str, from_id: str, limit: int, *, ascending: bool) -> Sequence[ports.ExecutionView]:
        ids = self._ids(*((FOREIGN,) if workspace == "rival" else (QUEUED, BOTH, FAILED, GIVEN_UP)))
        return [dispatchers.execution_of(self._queued(id_)) for id_ in cut(ids, from_id, limit, ascending=ascending)]

    async def executions(self, execution_ids: Sequence[str]) -> Sequence[ports.ExecutionView]:
        known = self._ids(STARTED, BOTH, GIVEN_UP)
        return [coordinators.execution_of(self.started(id_)) for id_ in execution_ids if id_ in known]

    async def execution_page(self, asked: ExecutionQuery) -> ports.ExecutionPage:
        wanted = {condition.value for condition in asked.filter.conditions if condition.operator}
        limit = min(asked.limit, PAGE_SIZE_MAX)
        ids = self._ids(STARTED, BOTH, GIVEN_UP) if wanted <= {"RUNNING"} and asked.workspace == "team" else []
        ids = cut(ids, asked.from_id, limit, ascending=asked.ascending)
        shown = ids[: self.fitting or limit]
        return ports.ExecutionPage(
            [coordinators.execution_of(self.started(id_)) for id_ in shown], is_cut=len(shown) < len(ids)
        )

    async def cancel(self, workspace: str, execution: ports.ExecutionView, message_id: str, *_: Any) -> bool:
        self.cancelled.append(execution.id)
        self.messages.add(message_id)
        self.seen_seqs.append(execution.last_seq)
        return True

    async def unused(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("not asked for here")

    events = requests = modules = unused
    name = ""

    def waiting_since(self, time: float) -> Sequence[str]:
        return ()

    def final(self, execution: ports.ExecutionView) -> None: ...

    def open(self, *_: Any, **__: Any) -> Any:
        return self

    async def next(self, seconds: float) -> ports.ExecutionView | None:
        (execution_id,) = set(self.cancelled)
        record = self.started(execution_id)
        record.execution.state = Execution.CANCELLED
        return coordinators.execution_of(record)

    def close(self) -> None: ...


def cut(ids: list[str], from_id: str, limit: int, *, ascending: bool) -> list[str]:
    if not ascending:
        ids = ids[::-1]
    if from_id:
        ids = [id_ for id_ in ids if (id_ > from_id if ascending else id_ < from_id)]
    return ids[:limit]


def executions(places: MemoryPlaces) -> Executions:
    return Executions(places, places, places, ManualClock())


async def walked(places: MemoryPlaces, text: str, size: int, *, ascending: bool) -> list[tuple[str, int]]:
    """All pages, one after the other."""
    found: list[tuple[str, int]] = []
    from_id = ""
    while True:
        page = await executions(places).page(ExecutionQuery("team", parse(text), from_id, ascending, limit=size + 1))
        shown = page.executions[:size]
        found += [(each.id, each.state) for each in map(translate.listed, shown)]
        if len(page.executions) <= size and not page.is_cut:
            return found
        from_id = shown[-1].id


STATES = {
    QUEUED: Execution.PENDING,
    FAILED: Execution.FAILED,
    STARTED: Execution.RUNNING,
    BOTH: Execution.RUNNING,
    GIVEN_UP: Execution.FAILED,
}


@given(
    places=st.dictionaries(st.integers(0, 60).map(id_of), st.sampled_from([*STATES, FOREIGN]), max_size=40),
    state=st.sampled_from(["", "PENDING", "RUNNING", "FAILED", "SUCCESS"]),
    size=st.integers(1, 8),
    fitting=st.integers(0, 3),
    ascending=st.booleans(),
)
# The queue has one that is older than both that have started, and only the first of these fits into a page.
@example(places={id_of(1): QUEUED, id_of(2): STARTED, id_of(3): STARTED}, state="", size=3, fitting=1, ascending=False)
def test_pages_are_the_whole_list_in_order(
    places: dict[str, str], state: str, size: int, fitting: int, ascending: bool
) -> None:
    expected = sorted(
        (
            (id_, STATES[place])
            for id_, place in places.items()
            if place != FOREIGN and state in ("", Execution.State.Name(STATES[place]))
        ),
        reverse=not ascending,
    )
    text = f"state = {state}" if state else ""
    made = MemoryPlaces(places)
    made.fitting = fitting
    assert asyncio.run(walked(made, text, size, ascending=ascending)) == expected


async def test_long_queue_with_few_that_fit_is_read_to_its_end() -> None:
    places = dict.fromkeys(map(id_of, range(1_200)), QUEUED) | {id_of(3): FAILED}
    assert await walked(MemoryPlaces(places), "state = FAILED", 5, ascending=False) == [(id_of(3), Execution.FAILED)]


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("start_time:*", True),
        ("NOT start_time:*", False),
        ('start_time < "2026-11-02T00:00:00Z" AND error.type = ADMISSION', True),
        ("start_time:* AND state = RUNNING", False),
        ("error:type AND workflow = w*", True),
    ],
)
async def test_execution_that_was_given_up_is_listed_by_its_shown_fields(text: str, is_found: bool) -> None:
    class Begun(MemoryPlaces):
        def started(self, execution_id: str) -> reads_pb2.ExecutionRecord:
            record = super().started(execution_id)
            record.execution.start_time.FromJsonString("2026-11-01T00:00:00Z")
            return record

    found = await walked(Begun({id_of(1): GIVEN_UP}), text, 5, ascending=False)
    assert found == [(id_of(1), Execution.FAILED)] * is_found


@pytest.mark.parametrize(
    ("text", "asked"),
    [("state = RUNNING", 0), ("workflow = other", 0), ("start_time:*", 900), ("NOT start_time:*", 900)],
)
async def test_coordinators_are_asked_for_executions_that_may_match(text: str, asked: int) -> None:
    """Rows that were given up stay in the queue, and each record has an input and an output."""

    class Counting(MemoryPlaces):
        asked = 0

        async def executions(self, execution_ids: Sequence[str]) -> Sequence[ports.ExecutionView]:
            self.asked += len(execution_ids)
            return await super().executions(execution_ids)

    places = Counting(dict.fromkeys(map(id_of, range(900)), FAILED))
    await executions(places).page(ExecutionQuery("team", parse(text), "", ascending=True, limit=1_000))
    assert places.asked == asked


async def test_largest_page_does_not_end_the_list_where_some_were_given_up() -> None:
    places = dict.fromkeys(map(id_of, range(2_500)), STARTED) | {id_of(7): GIVEN_UP, id_of(1_700): GIVEN_UP}
    found = await walked(MemoryPlaces(places), "state = RUNNING", PAGE_SIZE_MAX, ascending=True)
    assert [id_ for id_, _ in found] == [id_ for id_, place in places.items() if place == STARTED]


@pytest.mark.parametrize(
    ("place", "state"), [(QUEUED, Execution.PENDING), (BOTH, Execution.RUNNING), (STARTED, Execution.RUNNING)]
)
async def test_execution_is_found_wherever_it_is(place: str, state: int) -> None:
    record = translate.listed(await executions(MemoryPlaces({id_of(1): place})).find("team", id_of(1)))
    assert record.state == state


async def test_execution_that_moves_on_between_two_questions_is_found() -> None:
    class Moving(MemoryPlaces):
        async def queued(self, execution_ids: Sequence[str]) -> Sequence[ports.ExecutionView]:
            self.places[id_of(1)] = STARTED
            return []

    record = translate.listed(await executions(Moving({id_of(1): QUEUED})).find("team", id_of(1)))
    assert record.state == Execution.RUNNING


async def test_execution_that_was_given_up_has_ended_for_whoever_asks() -> None:
    places = MemoryPlaces({id_of(1): GIVEN_UP})
    record = translate.listed(await executions(places).find("team", id_of(1)))
    assert (record.state, record.error.type) == (Execution.FAILED, "ADMISSION")
    assert (record.workflow, record.last_seq) == ("w", 8), "as its coordinator tells it"
    assert [translate.listed(each) for each in await executions(places).given_up([id_of(1)])] == [record]
    with pytest.raises(Refusal) as refused:
        await executions(places).cancel("team", id_of(1), "enough", "me")
    assert refused.value.reason == "EXECUTION_FINAL"


async def test_execution_that_is_read_often_is_asked_of_dispatchers_now_and_then() -> None:
    class Counting(MemoryPlaces):
        asked = 0

        async def queued(self, execution_ids: Sequence[str]) -> Sequence[ports.ExecutionView]:
            self.asked += 1
            return await super().queued(execution_ids)

    places, clock = Counting({id_of(1): BOTH}), ManualClock()
    reader = Executions(places, places, places, clock)
    for _ in range(10):
        assert (await reader.find("team", id_of(1))).state == "RUNNING"
    assert places.asked == 1
    places.places[id_of(1)] = GIVEN_UP
    clock.advance(2.0)
    assert (await reader.find("team", id_of(1))).state == "FAILED"


async def test_end_that_came_since_it_was_read_refuses_a_cancel_and_is_not_taken_back() -> None:
    places = MemoryPlaces({id_of(1): BOTH})
    reader = executions(places)
    await reader.find("team", id_of(1))
    places.places[id_of(1)] = GIVEN_UP
    with pytest.raises(Refusal) as refused:
        await reader.cancel("team", id_of(1), "enough", "me")
    assert refused.value.reason == "EXECUTION_FINAL"
    assert await reader.given_up([id_of(1)])
    assert (await reader.find("team", id_of(1))).state == "FAILED"


@pytest.mark.parametrize("failure", [DependencyUnavailable("the dispatcher"), Refusal("INTERNAL", "internal error")])
async def test_started_execution_is_read_while_dispatchers_cannot_tell(failure: Exception) -> None:
    class Away(MemoryPlaces):
        async def queued(self, execution_ids: Sequence[str]) -> Sequence[ports.ExecutionView]:
            raise failure

    record = translate.listed(await executions(Away({id_of(1): STARTED})).find("team", id_of(1)))
    assert record.state == Execution.RUNNING


@pytest.mark.parametrize("execution_id", [id_of(1), id_of(2), "no id"])
async def test_foreign_unknown_and_malformed_ids_answer_alike(execution_id: str) -> None:
    with pytest.raises(Refusal) as refused:
        await executions(MemoryPlaces({id_of(1): FOREIGN})).find("team", execution_id)
    assert refused.value.reason == "EXECUTION_NOT_FOUND"


async def test_cancel_answers_with_the_cancelled_execution() -> None:
    places = MemoryPlaces({id_of(1): STARTED})
    assert (await executions(places).cancel("team", id_of(1), "enough", "me")).state == "CANCELLED"
    assert places.cancelled == [id_of(1)]


async def test_every_cancel_is_a_message_of_its_own() -> None:
    """The execution may have been reopened between two of them, so the second one is no repeat of the first."""
    places = MemoryPlaces({id_of(1): STARTED})
    for caller in ("me", "another"):
        await executions(places).cancel("team", id_of(1), "enough", caller)
    assert len(places.messages) == 2
    assert places.seen_seqs == [7, 7], "a coordinator knows a late copy of each, because the execution has ended since"


async def test_a_cancel_with_a_request_id_is_a_message_of_its_own() -> None:
    places = MemoryPlaces({id_of(1): STARTED})
    for request_id in ("first", "first", "second"):
        await executions(places).order_cancel("team", id_of(1), request_id, "enough", "me")
    named = {request_of(message_id) for message_id in places.messages}
    assert {request for request, _ in named} == {f"cancel:{id_of(1)}:first", f"cancel:{id_of(1)}:second"}
    assert all(digest for _, digest in named), "a coordinator carries each of them out once"


@pytest.mark.parametrize(("state", "reason"), [(Execution.SUCCESS, "EXECUTION_FINAL"), (Execution.CANCELLED, "")])
async def test_cancel_of_what_has_ended_delivers_nothing(state: int, reason: str) -> None:
    class Ended(MemoryPlaces):
        def started(self, execution_id: str) -> reads_pb2.ExecutionRecord:
            record = super().started(execution_id)
            record.execution.state = state  # type: ignore[assignment] # by number
            return record

    places = Ended({id_of(1): STARTED})
    try:
        await executions(places).cancel("team", id_of(1), "enough", "me")
        told = ""
    except Refusal as refusal:
        told = refusal.reason
    assert told == reason
    assert places.cancelled == []
