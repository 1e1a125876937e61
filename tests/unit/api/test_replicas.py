"""A call goes on when its replica leaves the address book meanwhile. The streams are real."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from services.api.app.ports import QUEUE_ROWS_MAX, ExecutionQuery
from services.api.app.starts import INPUT_BYTES_MAX
from services.api.peers.coordinators import CoordinatorReads
from services.api.peers.dispatchers import DispatcherQueue
from services.api.peers.replicas import Replicas
from services.api.rpc.filters import ExecutionFilter
from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.client import MEBIBYTE, ChannelPool
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from tests.support.probe import eventually, until
from windlass.dispatcher.v1 import queue_pb2, queue_pb2_grpc
from windlass.types.v1.start_pb2 import StartOrder

LARGE = b"x" * INPUT_BYTES_MAX
# As many as a row shows, as large as they may be (services/dispatcher/store/reads.py).
COMMANDS = [b"x" * 4_096] * 20


class Dispatcher(queue_pb2_grpc.QueueServiceServicer):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked = False
        self.may_answer = asyncio.Event()

    async def GetQueued(self, request: Any, context: Any) -> Any:
        self.asked = True
        await self.may_answer.wait()
        return queue_pb2.GetQueuedResponse(items=map(largest_row, request.execution_ids))

    async def ListQueued(self, request: Any, context: Any) -> Any:
        return queue_pb2.ListQueuedResponse(items=map(largest_row, map(str, range(request.limit))))

    Deliver = ListFailed = ResolveFailed = FindRequests = GetQueued
    ConfigureWorkspace = GetQueuePlace = GetFailed = WakeParked = GetQueued


def largest_row(execution_id: str) -> queue_pb2.Queued:
    start = StartOrder(execution_id=execution_id, input=LARGE)
    return queue_pb2.Queued(start=start, unread_commands=COMMANDS)


@contextlib.asynccontextmanager
async def serving(dispatcher: Dispatcher, port: int = 0) -> AsyncIterator[str]:
    server = grpc.aio.server(options=[("grpc.max_send_message_length", 64 * MEBIBYTE)])
    queue_pb2_grpc.add_QueueServiceServicer_to_server(dispatcher, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@contextlib.asynccontextmanager
async def following(peers: Replicas) -> AsyncIterator[None]:
    task = asyncio.create_task(peers.run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await peers.close()


async def test_call_under_way_is_answered_though_its_replica_has_left_the_book(tmp_path: Path) -> None:
    dispatcher = Dispatcher()
    listed = tmp_path / "dispatchers"
    peers = Replicas("the dispatcher", AddressBook(f"@{listed}"), ChannelPool(), call_seconds=8.0)
    async with serving(dispatcher) as address:
        listed.write_text(f"{address}\n")
        async with following(peers):
            request = queue_pb2.GetQueuedRequest()
            call = asyncio.create_task(
                peers.call(lambda channel: queue_pb2_grpc.QueueServiceStub(channel).GetQueued, request)
            )
            await until(lambda: dispatcher.asked, 10.0, "the call")
            listed.write_text("127.0.0.1:1\n")
            await until(lambda: address not in peers.addresses, 10.0, "the news")
            dispatcher.may_answer.set()
            assert await call == queue_pb2.GetQueuedResponse()


async def test_rows_with_the_largest_inputs_and_all_their_commands_are_read_in_answers_that_can_be_taken() -> None:
    dispatcher = Dispatcher()
    dispatcher.may_answer.set()
    ids = [str(number) for number in range(300)]
    async with serving(dispatcher) as address:
        peers = Replicas("the dispatcher", AddressBook(address), ChannelPool(), call_seconds=30.0)
        async with following(peers):
            found = await DispatcherQueue(peers).queued(ids)
            page = await DispatcherQueue(peers).page("team", "", QUEUE_ROWS_MAX, ascending=True)
    assert [each.id for each in found] == ids
    assert len(page) == QUEUE_ROWS_MAX


async def test_replica_that_is_down_costs_no_calls_and_is_found_when_it_is_back() -> None:
    dispatcher = Dispatcher()
    dispatcher.may_answer.set()
    async with serving(dispatcher) as address:
        pass
    peers = Replicas("the dispatcher", AddressBook(address), ChannelPool(), call_seconds=0.5)
    tried = 0

    def method(channel: Any) -> Any:
        nonlocal tried
        tried += 1
        return queue_pb2_grpc.QueueServiceStub(channel).GetQueued

    async with following(peers):
        with pytest.raises(DependencyUnavailable):
            await peers.call(method, queue_pb2.GetQueuedRequest())
        tried_first = tried
        for _ in range(3):
            with pytest.raises(DependencyUnavailable):
                await peers.call(method, queue_pb2.GetQueuedRequest())
        assert tried == tried_first == 1, "each further call would have failed too"
        async with serving(dispatcher, int(address.rpartition(":")[2])):

            async def answered() -> bool:
                with contextlib.suppress(DependencyUnavailable):
                    await peers.call(method, queue_pb2.GetQueuedRequest())
                    return True
                return False

            await eventually(answered, 10.0, "an answer of the replica that is back")


class Refusing(Replicas):
    def __init__(self, reason: str) -> None:
        self.name = "the coordinator"
        self.reason = reason

    async def call(self, method: Any, request: Any) -> Any:
        raise Refusal(self.reason, "the filter cannot be applied: 'OPERATOR_UNSPECIFIED'")


EVERYTHING = ExecutionQuery("team", ExecutionFilter(()), from_id="", ascending=True, limit=10)


async def test_filter_that_a_coordinator_of_another_version_refuses_is_no_fault_of_the_caller() -> None:
    with pytest.raises(DependencyUnavailable, match="of another version"):
        await CoordinatorReads(Refusing("INVALID_REQUEST")).execution_page(EVERYTHING)
    with pytest.raises(Refusal):
        await CoordinatorReads(Refusing("INTERNAL")).execution_page(EVERYTHING)
