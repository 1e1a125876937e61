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
from services.coordinator.core.values import ReleaseReason
from services.coordinator.rpc import export_parts
from services.coordinator.store import codec
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


def handed_back(times: int, time: int = BEGIN) -> tuple[Story, list[Event]]:
    """A journal, all of whose events have one time: a run is granted and handed back, again and again."""
    story = Story([node("a")])
    story.start()
    events, key = list(story.journal), story.work("a").key
    for number in range(1, times + 1):
        events.append(RunLeased(time, key, number, number, "i1", "r1", "", False, 0))
        then = Consequences(ready=(key,))
        events.append(RunReleased(time, key, number, ReleaseReason.WITHDRAWN, False, False, then, 0))
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


async def test_commands_that_all_have_one_time_are_decided_with_a_rest_between_any_two() -> None:
    (story, events), clock = handed_back(500), SlowClock()
    before_the_end = 0

    async def parts() -> AsyncIterator[Any]:
        nonlocal before_the_end
        async for part in in_order(events):
            yield part
        before_the_end = clock.rests

    replayed = await Replays(NOTHING, NOTHING, clock).of_export(EXECUTION_ID, story.definition, parts())
    assert replayed.redecided > 500
    assert clock.rests - before_the_end >= replayed.redecided


async def test_the_rows_of_an_execution_that_goes_on_are_hashed_with_a_rest_between_any_two() -> None:
    (story, events), clock = handed_back(1_500), SlowClock()
    before_the_end = 0

    async def parts() -> AsyncIterator[Any]:
        nonlocal before_the_end
        async for part in in_order(events):
            yield part
        before_the_end = clock.rests

    replayed = await Replays(NOTHING, NOTHING, clock).of_export(EXECUTION_ID, story.definition, parts())
    assert (replayed.recorded_hash, len(replayed.replayed_hash)) == ("", 64)
    assert clock.rests - before_the_end >= 1_500


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


async def test_more_replays_than_may_wait_are_refused_and_the_others_go_on() -> None:
    story = Story([node("a")])
    story.start()
    may_end = asyncio.Event()

    async def parts() -> AsyncIterator[Any]:
        async for part in in_order(story.journal):
            yield part
        await may_end.wait()

    replays = Replays(NOTHING, NOTHING, SystemClock())

    async def replay() -> Any:
        return await replays.of_export(EXECUTION_ID, story.definition, parts())

    waiting = [asyncio.create_task(replay()) for _ in range(32)]
    await asyncio.sleep(0)
    with pytest.raises(Refusal, match="too many journals") as refused:
        await replay()
    assert refused.value.reason == "REPLAYS_EXCEEDED"
    may_end.set()
    assert {(await task).events for task in waiting} == {len(story.journal)}
    assert (await replay()).first_difference is None
