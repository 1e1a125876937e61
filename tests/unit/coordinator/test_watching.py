"""Reads of the tables for watchers, and the end of a watch stream."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import pytest

from services.coordinator.app.ports import Standing
from services.coordinator.core.events import RunStarted
from services.coordinator.core.values import WorkKey
from services.coordinator.rpc.reads import ReadServicer
from services.coordinator.rpc.watch import WatchHub, WatchStream
from services.coordinator.rpc.watch_streams import WatchServicer
from services.coordinator.store.codec import Stored
from windlass.coordinator.v1 import reads_pb2 as pb

# Nothing here asks for stored outputs, past states or explanations.
NO_JOURNAL: Any = (None, None, None, None)

ID = "01931f3c-7a1b-7c3d-8e4f-1234567890ab"


class Tables:
    """One execution with `events` in its journal."""

    def __init__(self) -> None:
        self.events_there: list[Stored] = []
        self.is_final = False
        self.rows_read = 0

    def happen(self, number: int) -> None:
        seq = len(self.events_there) + 1
        started = RunStarted(time=5, key=WorkKey(f"node{number}"), run=number, start_time=4, backstop_time=0)
        self.events_there.append(Stored(ID, seq, 1, started))

    def end(self) -> None:
        self.happen(1)
        self.is_final = True

    async def standings(self, execution_ids: Sequence[str]) -> Mapping[str, Standing]:
        return {ID: Standing("w", len(self.events_there), self.is_final)} if ID in execution_ids else {}

    async def executions(self, execution_ids: Sequence[str]) -> list[Any]:
        self.rows_read += len(execution_ids)
        row: dict[str, Any] = dict.fromkeys(
            ("caller", "parent_execution_id", "origin_execution_id", "traceparent", "workspace", "workflow"), ""
        )
        row |= dict.fromkeys(("create_time", "start_time", "end_time", "deadline_time", "version"), 1)
        row |= dict.fromkeys(("runs", "retries", "cost_tokens", "priority", "trigger_type"), 1)
        row |= {"execution_id": ID, "state": "SUCCESS", "last_seq": len(self.events_there), "labels": {}}
        return [row | {"input": b"{}", "output": b"{}", "error_type": None, "summary": None}]

    async def events(self, execution_id: str, *, after_seq: int, limit: int) -> Sequence[Stored]:
        return self.events_there[after_seq:][:limit]


def hub_of(tables: Any) -> WatchHub:
    reader = ReadServicer(tables, lambda _: ((), ()), *NO_JOURNAL)
    return WatchHub(tables, reader, owned=lambda: ())


async def test_a_whole_row_is_read_once_when_an_execution_has_ended() -> None:
    tables = Tables()
    hub, stream = hub_of(tables), WatchStream()
    hub.subscribe(stream, pb.Subscription(execution_id=ID, events=True))
    subscription = stream.by_execution[ID]
    for number in (1, 2):
        tables.happen(number)
        await hub.check([subscription])
    assert [update.event.event.node for update in stream.updates] == ["node1", "node2"]
    assert tables.rows_read == 0
    tables.happen(3)
    tables.is_final = True
    await hub.check([subscription])
    assert tables.rows_read == 1
    assert [update.WhichOneof("update") for update in stream.updates] == ["event"] * 3 + ["final"]
    assert not stream.by_execution


async def test_a_subscription_with_several_gaps_is_told_of_the_end_once() -> None:
    tables = Tables()
    hub, stream = hub_of(tables), WatchStream()
    hub.subscribe(stream, pb.Subscription(execution_id=ID, events=True, catch_up=True))
    tables.end()
    await hub.check([stream.by_execution[ID]] * 2)
    assert [update.WhichOneof("update") for update in stream.updates] == ["event", "final"]


class Call:
    """The context of a call that sends one request, and ends when it has got so many answers."""

    def __init__(self, request: pb.WatchRequest, answers: int = 0) -> None:
        self._requests, self._answers_wanted = [request], answers
        self._said = asyncio.Event()
        self.answers: list[Any] = []

    async def read(self) -> Any:
        if self._requests:
            return self._requests.pop()
        while len(self.answers) < self._answers_wanted:
            self._said.clear()
            await self._said.wait()
        return grpc.aio.EOF

    async def write(self, message: Any) -> None:
        self.answers.append(message)
        self._said.set()


SUBSCRIBES = pb.WatchRequest(subscriptions=[pb.Subscription(execution_id=ID)])


async def test_a_watch_that_breaks_says_so() -> None:
    class Broken(WatchHub):
        def subscribe(self, stream: WatchStream, wanted: pb.Subscription) -> None:
            raise RuntimeError("a bug of ours")

    tables: Any = Tables()
    broken = Broken(tables, ReadServicer(tables, lambda _: ((), ()), *NO_JOURNAL), owned=lambda: ())
    with pytest.raises(RuntimeError, match="a bug of ours"):
        await WatchServicer(broken).Watch(None, Call(SUBSCRIBES))


async def test_a_watch_whose_caller_goes_just_ends() -> None:
    async with asyncio.timeout(5):
        await WatchServicer(hub_of(Tables())).Watch(None, Call(SUBSCRIBES))


async def test_what_is_granted_for_a_named_watcher_is_followed_without_a_subscription() -> None:
    hub, stream = hub_of(Tables()), WatchStream()
    hub.granted(ID, "api")
    hub.name_watcher(stream, "api")
    assert not stream.by_execution, "it subscribes by itself to what was before its stream"
    hub.granted(ID, "another")
    hub.granted(ID, "api")
    assert not stream.by_execution[ID].events
    assert hub.wants(ID, is_final=True)
    hub.leave(stream)
    hub.granted(ID, "api")
    assert not hub.wants(ID, is_final=True)


async def test_a_grant_takes_nothing_from_who_wants_every_event() -> None:
    hub, stream = hub_of(Tables()), WatchStream()
    hub.name_watcher(stream, "api")
    hub.subscribe(stream, pb.Subscription(execution_id=ID, events=True))
    hub.granted(ID, "api")
    assert stream.by_execution[ID].events


async def test_a_watcher_is_told_once_of_what_is_followed_for_long_without_its_asking() -> None:
    hub, stream = hub_of(Tables()), WatchStream()
    asked, left = (ID[:-1] + digit for digit in "01")
    hub.name_watcher(stream, "api")
    for execution_id in (ID, asked, left):
        hub.granted(execution_id, "api")
    hub.tell_followed()
    assert not stream.followed, "nearly all end before the next poll"
    hub.subscribe(stream, pb.Subscription(execution_id=asked, events=True))
    hub.cancel(stream, left)
    hub.granted(ID, "api")
    for _ in range(3):
        hub.tell_followed()
        assert stream.followed == [ID]


async def test_a_newer_stream_of_a_watcher_stays_its_own_when_the_older_ends() -> None:
    hub, older, newer = hub_of(Tables()), WatchStream(), WatchStream()
    hub.name_watcher(older, "api")
    hub.name_watcher(newer, "api")
    hub.leave(older)
    hub.granted(ID, "api")
    assert ID in newer.by_execution


async def test_a_watcher_is_told_that_it_is_known() -> None:
    call = Call(pb.WatchRequest(watcher="api"), answers=1)
    async with asyncio.timeout(5):
        await WatchServicer(hub_of(Tables())).Watch(None, call)
    assert call.answers == [pb.WatchResponse(knows_watcher=True)]
