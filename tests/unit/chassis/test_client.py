"""Channels add a credential and a deadline to every call."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc_channelz.v1 import channelz, channelz_pb2

from services.chassis.grpc.client import ChannelPool
from services.chassis.grpc.server import GrpcServer
from services.chassis.telemetry.tracing import TRACEPARENT, new_trace
from tests.support.pace import pause
from tests.unit.chassis.shop import Counter, Shop, guard_of, open_shop, refused, servicer_of


async def test_a_call_without_a_timeout_gets_the_default_one(counter: Counter) -> None:
    stub = counter.stub(bearer="admin", call_seconds=0.05)
    refusal = await refused(stub.Buy(counter.order("slow")))
    assert refusal.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_metadata_of_a_call_goes_beside_the_credential(counter: Counter) -> None:
    trace = new_trace(False)
    stub = counter.stub(bearer="admin")
    answer = await stub.Buy(counter.order("trace"), metadata=((TRACEPARENT, trace.header()),))
    assert answer.receipt == trace.header()


async def test_a_channel_finds_a_server_that_comes_back(shop: Shop) -> None:
    pool = ChannelPool(bearer="admin")
    async with open_shop(shop, guard_of()) as first:
        address = first.address
        stub = shop.services.ShopServiceStub(pool.get(address))
        assert (await stub.Buy(first.order())).receipt
    assert (await refused(stub.Buy(first.order()))).may_retry
    again = GrpcServer(address, guard=guard_of())
    shop.services.add_ShopServiceServicer_to_server(servicer_of(shop), again)
    server = Counter(shop, again, await again.start())
    assert (await stub.Buy(first.order(), wait_for_ready=True)).receipt
    await server.close()
    await pool.close()


async def test_a_server_that_is_slow_to_shake_hands_is_waited_for(counter: Counter) -> None:
    """A busy machine, or a long way with TLS, takes some tenths of a second before the first call can begin."""

    async def passed(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            target.write(data)
        target.close()

    async def slowly(from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        await pause(0.3)
        from_server, to_server = await asyncio.open_connection("127.0.0.1", counter.port)
        await asyncio.gather(passed(from_client, to_server), passed(from_server, to_client))

    async with await asyncio.start_server(slowly, "127.0.0.1", 0) as server:
        slow = Counter(counter.shop, counter.server, server.sockets[0].getsockname()[1])
        channel = slow.channel(bearer="admin")
        assert (await counter.shop.services.ShopServiceStub(channel).Buy(counter.order())).receipt
        await channel.close()


async def test_one_channel_per_address_until_it_is_forgotten(counter: Counter) -> None:
    pool = ChannelPool(bearer="admin")
    channel = pool.get(counter.address)
    assert pool.get(counter.address) is channel
    await pool.forget(counter.address)
    await pool.forget("127.0.0.1:1")
    assert pool.get(counter.address) is not channel
    await pool.close()


async def test_a_call_whose_channel_is_closed_fails_as_if_its_server_had_died(counter: Counter) -> None:
    pool = ChannelPool(bearer="admin")
    call = counter.shop.services.ShopServiceStub(pool.get(counter.address)).Buy(counter.order("slow"), timeout=60)
    await pool.forget(counter.address)
    refusal = await refused(call)
    assert (refusal.code, refusal.may_retry) == (grpc.StatusCode.UNAVAILABLE, True)


async def test_a_caller_that_gives_up_by_itself_is_told_of_no_failure(counter: Counter) -> None:
    stub = counter.stub(bearer="admin")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await stub.Buy(counter.order("slow"), timeout=60)


def pings_sent(port: int) -> int:
    """The pings of all channels of this process to that port, as gRPC counts them."""
    ask: Any = channelz.ChannelzServicer  # typed for a context that it does not use
    tops = ask.GetTopChannels(channelz_pb2.GetTopChannelsRequest(), None).channel
    total = 0
    for subchannel in (ref for top in tops if top.data.target.endswith(f":{port}") for ref in top.subchannel_ref):
        request = channelz_pb2.GetSubchannelRequest(subchannel_id=subchannel.subchannel_id)
        for socket in ask.GetSubchannel(request, None).subchannel.socket_ref:
            found = ask.GetSocket(channelz_pb2.GetSocketRequest(socket_id=socket.socket_id), None).socket
            total += found.data.keep_alives_sent
    return total


async def test_an_idle_stream_lives_through_more_pings_than_servers_allow_by_default(counter: Counter) -> None:
    """These are ten idle minutes at a scaled clock. The third ping too many would be answered with GOAWAY."""
    options = [("grpc.keepalive_time_ms", 10)]
    chat = counter.stub(bearer="admin", options=options).Chat()
    await chat.write(counter.order("before"))
    assert (await chat.read()).receipt == "before"
    other = counter.stub(bearer="admin")  # a connection of its own, whose calls leave the first one idle
    while pings_sent(counter.port) < 5:
        await refused(other.Buy(counter.order("slow"), timeout=0.05))
    await chat.write(counter.order("after"))
    assert (await chat.read()).receipt == "after"
