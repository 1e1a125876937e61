"""Replays and imports find a coordinator that is there, and workspaces share the places. The calls are real."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio
import pytest

from services.api.peers.replays import CoordinatorReplays
from services.chassis.grpc.client import Channel, ChannelPool
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.identity.callers import CallerKind, Identity, set_caller
from tests.support.probe import until
from windlass.api.v1.exports_pb2 import Replay
from windlass.coordinator.v1 import replays_pb2 as pb
from windlass.coordinator.v1 import replays_pb2_grpc
from windlass.journal.v1.export_pb2 import ExportPart

# Nobody listens there.
NOBODY = "127.0.0.1:1"


class Coordinator(replays_pb2_grpc.ReplayServiceServicer):
    """Answers with the number of the requests, when it may."""

    def __init__(self) -> None:
        self.workspaces: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def ReplayParts(self, request_iterator: Any, context: Any) -> Any:
        requests = [await anext(request_iterator)]
        self.workspaces.append(requests[0].workspace)
        requests += [request async for request in request_iterator]
        await self.may_answer.wait()
        return pb.ReplayPartsResponse(replay=Replay(events=len(requests)))

    async def ReplayJournal(self, request: Any, context: Any) -> Any:
        self.workspaces.append(request.execution_id)
        return pb.ReplayJournalResponse(replay=Replay(events=1))

    async def ExportJournal(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield pb.ExportJournalResponse()

    ImportParts = ReplayParts


class Peers:
    """The coordinators that api knows of."""

    name = "the coordinator"

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)
        self._channels = ChannelPool()

    def channel(self, address: str) -> Channel:
        return self._channels.get(address)

    async def close(self) -> None:
        await self._channels.close()


@contextlib.asynccontextmanager
async def serving(*coordinators: Coordinator, before: Sequence[str] = ()) -> AsyncIterator[CoordinatorReplays]:
    servers, addresses = [], list(before)
    for each in coordinators:
        server = grpc.aio.server()
        replays_pb2_grpc.add_ReplayServiceServicer_to_server(each, server)
        addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
        servers.append(server)
    peers: Any = Peers(addresses)
    try:
        yield CoordinatorReplays(peers)
    finally:
        await peers.close()
        for server in servers:
            await server.stop(None)


def of(workspace: str) -> None:
    set_caller(Identity(CallerKind.MEMBER, "key", workspace))


async def parts(count: int = 3) -> AsyncIterator[Sequence[Any]]:
    for _ in range(count):
        yield [ExportPart()]


async def replay(replays: CoordinatorReplays, workspace: str) -> Any:
    of(workspace)
    return await replays.replay_parts(parts(), b"{}")


async def test_replays_go_to_all_coordinators_in_turn_and_name_their_workspace() -> None:
    coordinators = [Coordinator(), Coordinator()]
    async with serving(*coordinators) as replays:
        for _ in range(4):
            assert (await replay(replays, "w")).events == 3
        assert [each.workspaces for each in coordinators] == [["w"] * 2] * 2
        for _ in range(2):
            await replays.replay("id")
    assert [each.workspaces for each in coordinators] == [["w", "w", "id"]] * 2


async def test_an_export_is_sent_to_the_next_coordinator_when_one_is_not_there() -> None:
    async with serving(coordinator := Coordinator(), before=[NOBODY]) as replays:
        for _ in range(3):
            assert (await replay(replays, "w")).events == 3
    assert coordinator.workspaces == ["w"] * 3
    async with serving(before=[NOBODY]) as replays:
        with pytest.raises(DependencyUnavailable):
            await replay(replays, "w")


async def test_a_workspace_whose_exports_come_slowly_keeps_no_other_from_a_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.api.peers.replays._WAIT_SECONDS", 0.0)
    async with serving(coordinator := Coordinator()) as replays:
        coordinator.may_answer.clear()
        slow = [asyncio.create_task(replay(replays, "slow")) for _ in range(2)]
        await until(lambda: coordinator.workspaces == ["slow"] * 2, 10.0, "two replays")
        with pytest.raises(Refusal) as refused:
            await replay(replays, "slow")
        assert refused.value.reason == "REPLAYS_EXCEEDED"
        other = asyncio.create_task(replay(replays, "other"))
        await until(lambda: "other" in coordinator.workspaces, 10.0, "the other workspace")
        coordinator.may_answer.set()
        for each in (*slow, other):
            assert (await each).events == 3
