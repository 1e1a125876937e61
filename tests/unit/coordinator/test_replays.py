"""What a replay may take: time on the event loop, memory and places are bounded, whatever is in an export."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from services.chassis.grpc.errors import Refusal
from services.chassis.process.clock import SystemClock
from services.coordinator.app.replays import Replays
from services.coordinator.core.events import Consequences, Event, RunLeased, RunReleased
from services.coordinator.core.replaying import NotReplayable
from services.coordinator.core.values import ReleaseReason, WorkKey
from services.coordinator.rpc import export_parts
from services.coordinator.store import codec
from tests.support.probe import until
from tests.support.story import BEGIN, EXECUTION_ID, Story, node
from windlass.journal.v1.export_pb2 import ExportPart

NOTHING: Any = None


class SlowClock(SystemClock):
    """Every look at it takes so long that a rest is due. Counts the rests."""

    def __init__(self) -> None:
        self.rests = 0
        self._seconds = 0.0

    def monotonic(self) -> float:
        self._seconds += 1.0
        return self._seconds

    async def sleep(self, seconds: float) -> None:
        self.rests += 1
        await asyncio.sleep(0)


def granted_and_taken_back(key: WorkKey, number: int) -> tuple[Event, Event]:
    leased = RunLeased(BEGIN, key, number, number, "i1", "r1", "", False, 0)
    then = Consequences(ready=(key,))
    return leased, RunReleased(BEGIN, key, number, ReleaseReason.WITHDRAWN, False, False, then, 0)


def handed_back(times: int) -> tuple[Story, list[Event]]:
    """A journal, all of whose events have one time: a run is granted and taken back, again and again."""
    story = Story([node("a")])
    story.start()
    events, key = list(story.journal), story.work("a").key
    for number in range(1, times + 1):
        events += granted_and_taken_back(key, number)
    return story, events


async def in_order(events: Sequence[Event]) -> AsyncIterator[Any]:
    for seq, event in enumerate(events, 1):
        yield seq, event


async def test_events_that_all_have_one_time_are_folded_with_a_rest_between_any_two() -> None:
    (story, events), clock = handed_back(1_500), SlowClock()
    replayed = await Replays(NOTHING, NOTHING, clock).of_export(EXECUTION_ID, story.definition, in_order(events))
    assert (replayed.events, replayed.first_difference, replayed.redecided) == (len(events), None, 0)
    # Each event is folded twice: for the rows, and for what is decided.
    assert clock.rests >= 2 * len(events)


async def replayed_to_the_end(times: int) -> tuple[Any, int]:
    """What becomes of such a journal, and how many rests were taken after its last event."""
    (story, events), clock = handed_back(times), SlowClock()
    before_the_end = 0

    async def parts() -> AsyncIterator[Any]:
        nonlocal before_the_end
        async for part in in_order(events):
            yield part
        before_the_end = clock.rests

    replayed = await Replays(NOTHING, NOTHING, clock).of_export(EXECUTION_ID, story.definition, parts())
    return replayed, clock.rests - before_the_end


async def test_commands_that_all_have_one_time_are_decided_with_a_rest_between_any_two() -> None:
    replayed, rests = await replayed_to_the_end(500)
    assert replayed.redecided > 500
    assert rests >= replayed.redecided


async def test_the_rows_of_an_execution_that_goes_on_are_hashed_with_a_rest_between_any_two() -> None:
    replayed, rests = await replayed_to_the_end(1_500)
    assert (replayed.recorded_hash, len(replayed.replayed_hash)) == ("", 64)
    assert rests >= 1_500


@pytest.mark.parametrize("place", ["at the end", "before the last one"])
async def test_rows_that_were_not_recorded_are_passed_with_a_rest_between_any_two(place: str) -> None:
    (story, events), clock = handed_back(1_500), SlowClock()
    before_the_rows = 0

    async def parts() -> AsyncIterator[Any]:
        nonlocal before_the_rows
        async for part in in_order(events):
            yield part
        yield ("executions", 0), {"state": "RUNNING"}
        before_the_rows = clock.rests
        if place == "before the last one":
            yield ("runs", 1_500), {}

    replayed = await Replays(NOTHING, NOTHING, clock).of_export(EXECUTION_ID, story.definition, parts())
    assert replayed.first_difference is not None
    assert clock.rests - before_the_rows >= 1_499


def part_of(seq: int, event: Event) -> ExportPart:
    part = ExportPart()
    part.event.seq, part.event.epoch, part.event.schema_version = seq, 1, codec.SCHEMA_VERSION
    part.event.event.ParseFromString(codec.encode_event(event))
    part.event.time.FromMicroseconds(event.time)
    return part


async def read_all(parts: Sequence[ExportPart]) -> int:
    async def given() -> AsyncIterator[ExportPart]:
        for part in parts:
            yield part

    export = export_parts.ExportParts(codec, given())
    count = len([name async for name, _ in export.events_and_rows()])
    await export.end()
    return count


async def test_a_file_with_too_many_events_is_refused_however_small_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_parts, "EVENTS_MAX", 5)
    _, events = handed_back(3)
    parts = [part_of(seq, event) for seq, event in enumerate(events, 1)]
    end = ExportPart()
    end.end.events = 5
    assert await read_all([*parts[:5], end]) == 5
    with pytest.raises(Refusal, match="at most 5 events") as refused:
        await read_all(parts)
    assert refused.value.reason == "EXPORT_TOO_LARGE"


async def test_a_file_with_more_rows_than_its_events_can_have_made_is_refused() -> None:
    story = Story([node("a")])
    story.start()
    rows = []
    for number in range(7):
        row = ExportPart()
        row.row.table, row.row.number, row.row.columns = "runs", number, "{}"
        rows.append(row)
    with pytest.raises(NotReplayable, match="more rows than its events"):
        await read_all([part_of(1, story.journal[0]), *rows])


class Held:
    """Replays that stay in their places until they may end."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may_end = asyncio.Event()
        self._replays = Replays(NOTHING, NOTHING, SystemClock())
        self._story = Story([node("a")])
        self._story.start()

    async def replay(self, workspace: str) -> Any:
        async with self._replays.place(workspace):
            return await self._replays.of_export(EXECUTION_ID, self._story.definition, self._parts(workspace))

    async def _parts(self, workspace: str) -> AsyncIterator[Any]:
        self.begun.append(workspace)
        async for part in in_order(self._story.journal):
            yield part
        await self.may_end.wait()


async def test_few_journals_are_replayed_at_once_and_the_others_wait() -> None:
    held = Held()
    replays = [asyncio.create_task(held.replay(f"w{number}")) for number in range(8)]
    for _ in range(100):
        await asyncio.sleep(0)
    assert held.begun == ["w0", "w1", "w2"]
    held.may_end.set()
    assert {(await each).events for each in replays} == {1}
    assert len(held.begun) == 8


async def test_a_workspace_with_many_replays_keeps_no_other_from_a_place() -> None:
    held = Held()
    many = [asyncio.create_task(held.replay("many")) for _ in range(50)]
    await asyncio.sleep(0)
    other = asyncio.create_task(held.replay("other"))
    await until(lambda: "other" in held.begun, 10.0, "the other workspace")
    assert held.begun == ["many", "other"]
    held.may_end.set()
    for each in (*many, other):
        assert (await each).first_difference is None


async def test_a_replay_whose_turn_does_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.coordinator.app.replays._WAIT_SECONDS", 0.0)
    held = Held()
    first = asyncio.create_task(held.replay("w"))
    await until(lambda: bool(held.begun), 10.0, "the first one")
    with pytest.raises(Refusal) as refused:
        await held.replay("w")
    assert refused.value.reason == "REPLAYS_EXCEEDED"
    held.may_end.set()
    assert (await first).events == 1
