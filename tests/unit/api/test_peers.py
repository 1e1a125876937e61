"""Calls of replicas that leave the address book while they are under way: on real streams."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from services.api.loops.peers import Peers
from services.chassis.addresses import AddressBook
from services.chassis.client import Channel, ChannelPool
from tests.support.probe import until
from windlass.dispatcher.v1 import queue_pb2, queue_pb2_grpc


class Dispatcher(queue_pb2_grpc.QueueServiceServicer):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked = False
        self.may_answer = asyncio.Event()

    async def GetQueued(self, request: Any, context: Any) -> queue_pb2.GetQueuedResponse:
        self.asked = True
        await self.may_answer.wait()
        return queue_pb2.GetQueuedResponse()


async def ask(channel: Channel, seconds: float) -> queue_pb2.GetQueuedResponse:
    return await queue_pb2_grpc.QueueServiceStub(channel).GetQueued(
        queue_pb2.GetQueuedRequest(), timeout=seconds
    )


async def test_call_under_way_is_answered_though_its_replica_has_left_the_book(tmp_path: Path) -> None:
    dispatcher, server = Dispatcher(), grpc.aio.server()  # type: ignore[abstract] # one call is asked
    queue_pb2_grpc.add_QueueServiceServicer_to_server(dispatcher, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    listed = tmp_path / "dispatchers"
    listed.write_text(f"127.0.0.1:{port}\n")
    peers = Peers("the dispatcher", AddressBook(f"@{listed}"), ChannelPool(), call_seconds=8.0)
    following = asyncio.create_task(peers.run())
    call = asyncio.create_task(peers.call(ask))
    await until(lambda: dispatcher.asked, 10.0, "the call")
    listed.write_text("127.0.0.1:1\n")
    await until(lambda: f"127.0.0.1:{port}" not in peers.addresses, 10.0, "the news")
    dispatcher.may_answer.set()
    assert await call == queue_pb2.GetQueuedResponse()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await peers.close()
    await server.stop(None)
