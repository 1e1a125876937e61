"""A watch and a wait outlive the processes that serve them: the client sees each event once, in order, and the end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from tests.support.api import Client
from tests.support.probe import until
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import executions_pb2, resources_pb2

SUCCESS = resources_pb2.Execution.SUCCESS
WATCH_SECONDS = 60.0
# There are enough steps for several deaths in the middle.
STEPS = 12


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack() -> AsyncIterator[Stack]:
    async with running_stack(apis=2, coordinators=2, dispatchers=2) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(stack: Stack) -> Client:
    made = Client(stack)
    nodes = [{"id": f"n{number}", "module": "delay@1", "config": {"duration": "250ms"}} for number in range(STEPS)]
    edges = [{"from": f"n{number}", "to": f"n{number + 1}"} for number in range(STEPS - 1)]
    await made.apply("steps", [{**node, "idempotent": True} for node in nodes], edges=edges)
    return made


class Follower:
    """One watch, in the background."""

    def __init__(self, client: Client, execution_id: str, after_seq: int = 0) -> None:
        request = executions_pb2.WatchExecutionRequest(execution_id=execution_id, after_seq=after_seq)
        self.seen: list[resources_pb2.Event] = []
        self._call: Any = client.executions.WatchExecution(request, metadata=client.metadata, timeout=WATCH_SECONDS)
        self.following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for response in self._call:
            self.seen.append(response.event)

    async def has(self, count: int) -> None:
        await until(lambda: len(self.seen) >= count or self.following.done(), WATCH_SECONDS, f"{count} events")

    def is_whole(self, after_seq: int = 0) -> bool:
        return [event.seq for event in self.seen] == list(range(after_seq + 1, self.seen[-1].seq + 1))


@pytest.mark.chaos
@pytest.mark.parametrize("victim", ["coordinator", "dispatcher", "runner"])
async def test_watch_and_wait_go_on(stack: Stack, client: Client, victim: str) -> None:
    waiting = asyncio.create_task(client.run("steps"))
    execution = await client.start("steps")
    follower = Follower(client, execution.id)
    for replica, enough in enumerate((4, 12)):
        await follower.has(enough)
        if victim == "runner":  # there is one
            replica = 0
        pid = stack.kill(victim, replica)
        await stack.ready_again(victim, replica, pid)
    await follower.following
    assert follower.is_whole()
    assert follower.seen[-1].state == SUCCESS
    assert (await waiting).state == SUCCESS


@pytest.mark.chaos
async def test_watch_goes_on_at_another_api(stack: Stack, client: Client) -> None:
    """The client goes on after the last sequence that it received."""
    execution = await client.start("steps")
    first = Follower(client, execution.id)
    await first.has(5)
    pid = stack.kill("api", 0)
    with pytest.raises(grpc.aio.AioRpcError) as broken:
        await first.following
    assert broken.value.code() is grpc.StatusCode.UNAVAILABLE
    other = Client(stack)
    channel = stack.channel("api", 1)
    other.executions = type(other.executions)(channel)
    second = Follower(other, execution.id, first.seen[-1].seq)
    await second.following
    assert first.is_whole()
    assert second.is_whole(first.seen[-1].seq)
    assert second.seen[-1].state == SUCCESS
    await stack.ready_again("api", 0, pid)
