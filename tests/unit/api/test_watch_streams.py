"""The watches of an api and of coordinators on real streams: an end arrives, whichever coordinator has it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from functools import partial

import grpc
import grpc.aio
import pytest_asyncio

from services.api.app.ports import ExecutionView
from services.api.peers.watch_streams import OpenWatch, WatchStreams
from services.chassis.grpc.client import ChannelPool
from services.coordinator.rpc.watch import WatchHub as CoordinatorHub
from services.coordinator.rpc.watch_streams import WatchServicer
from tests.support.probe import until
from tests.unit.coordinator.test_watching import ID, Tables, hub_of
from windlass.coordinator.v1.reads_pb2_grpc import add_WatchServiceServicer_to_server

SECONDS = 20.0
OTHER_ID = ID[:-1] + "0"
# Two seconds of a coordinator last this long here.
SCALE = 0.01


class Coordinator:
    """Its streams can be cut, and it keeps its executions."""

    def __init__(self, tables: Tables) -> None:
        self.watches: CoordinatorHub = hub_of(tables)
        self._server: grpc.aio.Server | None = None
        self._port = 0
        self._loops = [
            asyncio.create_task(self.watches.run_catching_up()),
            asyncio.create_task(self.watches.run_polling(SCALE)),
        ]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def follows(self, execution_id: str = ID) -> bool:
        return self.watches.wants(execution_id, is_final=True)

    def has_left(self) -> bool:
        return not self.follows()

    async def serve(self) -> None:
        self._server = grpc.aio.server()
        add_WatchServiceServicer_to_server(WatchServicer(self.watches), self._server)
        self._port = self._server.add_insecure_port(self.address)
        await self._server.start()

    async def cut(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    async def close(self) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self.cut()


class Api:
    """Its watch streams, and the coordinators that it has in its book."""

    def __init__(self) -> None:
        self.watches = WatchStreams()
        self._channels = ChannelPool()
        self._serving: list[asyncio.Task[None]] = []

    async def know(self, *coordinators: Coordinator) -> None:
        for each in coordinators:
            channel = self._channels.get(each.address)
            self._serving.append(asyncio.create_task(self.watches.serve(each.address, channel)))
        await self.is_known(len(self._serving))

    async def is_known(self, count: int) -> None:
        """Wait until this number of coordinators follows the starts that name this api."""
        await until(lambda: sum(stream.knows_us for stream in self.watches.streams) == count, SECONDS, "known streams")

    def start(self) -> OpenWatch:
        watch = self.watches.open(ID, is_new=True)
        self.watches.flush()
        return watch

    async def close(self) -> None:
        for serving in self._serving:
            serving.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._channels.close()


@pytest_asyncio.fixture
async def tables() -> Tables:
    return Tables()


@pytest_asyncio.fixture
async def coordinators(tables: Tables) -> AsyncIterator[list[Coordinator]]:
    async with contextlib.AsyncExitStack() as stack:
        made = [Coordinator(tables) for _ in range(2)]
        for each in made:
            stack.push_async_callback(each.close)
            await each.serve()
        yield made


@pytest_asyncio.fixture
async def api(coordinators: list[Coordinator]) -> AsyncIterator[Api]:
    made = Api()
    try:
        yield made
    finally:
        await made.close()


async def is_told(watch: OpenWatch) -> bool:
    return isinstance(await watch.next(SECONDS), ExecutionView)


async def test_end_is_told_of_a_start_that_is_granted_where_no_stream_of_ours_is(
    tables: Tables, coordinators: list[Coordinator], api: Api
) -> None:
    await api.know(*coordinators)
    carrying, _ = coordinators
    await carrying.cut()
    await api.is_known(1)
    watch = api.start()
    carrying.watches.granted(ID, api.watches.name)
    tables.end()
    assert await is_told(watch)


async def test_end_is_told_of_a_start_that_is_granted_to_a_coordinator_unknown_here(
    tables: Tables, coordinators: list[Coordinator], api: Api
) -> None:
    unknown, known = coordinators
    await api.know(known)
    watch = api.start()
    unknown.watches.granted(ID, api.watches.name)
    tables.end()
    api.watches.subscribe_late_starts(math.inf)
    assert await is_told(watch)


async def taken_back(api: Api, coordinators: list[Coordinator]) -> None:
    """Wait until all coordinators have heard every earlier cancellation."""
    barrier = api.watches.open(OTHER_ID)
    for each in coordinators:
        await until(partial(each.follows, OTHER_ID), SECONDS, "the next word")
    barrier.close()


async def none_follows(coordinators: list[Coordinator]) -> None:
    for each in coordinators:
        await until(each.has_left, SECONDS, "nobody to be told")


async def test_start_that_is_granted_after_its_caller_gave_up_is_left_alone(
    coordinators: list[Coordinator], api: Api
) -> None:
    await api.know(*coordinators)
    api.start().close()
    await taken_back(api, coordinators)
    first, second = coordinators
    for again in (first, second, first):
        again.watches.granted(ID, api.watches.name)
        assert again.follows()
        await none_follows(coordinators)


async def test_end_is_told_to_who_waits_on_when_it_is_granted_elsewhere_again(
    tables: Tables, coordinators: list[Coordinator], api: Api
) -> None:
    await api.know(*coordinators)
    watch = api.start()
    for each in coordinators:
        each.watches.granted(ID, api.watches.name)
    await until(lambda: all(ID in each.followed for each in api.watches.streams), SECONDS, "both are known to follow")
    assert all(each.follows() for each in coordinators), "somebody waits"
    tables.end()
    assert await is_told(watch)
    await none_follows(coordinators)
