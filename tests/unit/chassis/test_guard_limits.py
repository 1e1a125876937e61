"""What the guard lets each caller have: open calls, memory of requests and answers, and time to send them."""

import asyncio
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2

from services.chassis.grpc.errors import RemoteError, remote_error
from services.chassis.grpc.guard import Guard
from services.chassis.grpc.held_messages import held_by_request
from services.chassis.grpc.limits import MEBIBYTE, ServerLimits
from services.chassis.grpc.reflection import METHOD, V1
from services.chassis.identity.callers import (
    CallerKind,
    Identity,
    Rule,
    ServiceCredential,
    anyone,
    members,
    services,
    system,
)
from tests.support.probe import eventually
from tests.support.proxy import cable
from tests.support.unfinished import Connection
from tests.unit.chassis.shop import LARGE, SECRET, SHOP_METHODS, Counter, KeyRing, Shop, guard_of, open_shop, refused

BUY, _, CHAT, PACK = SHOP_METHODS


async def served_at_last(call: Callable[[], Any]) -> str:
    """Call until the call is served."""

    async def receipt() -> str:
        try:
            return str((await call()).receipt)
        except grpc.aio.AioRpcError:
            return ""

    return await eventually(receipt, 20, "an answer")


async def test_one_address_has_half_of_the_calls_without_a_key_and_no_more(shop: Shop) -> None:
    guard, limits = Guard(dict.fromkeys(SHOP_METHODS, anyone())), ServerLimits(open_calls_max=20)
    async with open_shop(shop, guard, limits=limits) as counter, cable(counter.address, "127.0.0.2") as elsewhere:
        stub, other = counter.stub(), counter.stub_to(elsewhere.address)

        async def opened() -> Any:
            """A call that the server has begun."""
            call = stub.Chat(timeout=60)
            with contextlib.suppress(asyncio.InvalidStateError):  # it may be refused already
                await call.write(counter.order("boots"))
            return SimpleNamespace(call=call, receipt=(await call.read()).receipt)

        open_calls = [await opened() for _ in range(10)]
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await opened()
        refusal = remote_error(failed.value)
        assert (refusal.code.name, refusal.reason) == ("RESOURCE_EXHAUSTED", "OPEN_CALLS_EXCEEDED")
        follow = await refused(stub.Follow(counter.order(pairs=1)).read())
        assert follow.reason == "OPEN_CALLS_EXCEEDED", "all methods together have no more memory than one"
        assert (await other.Buy(counter.order())).receipt, "another address has a share of its own"
        open_calls[0].call.cancel()
        assert await served_at_last(opened) == "boots"
        for each in open_calls:
            each.call.cancel()


async def test_one_key_leaves_calls_to_others_of_its_workspace_and_a_workspace_to_others(shop: Shop) -> None:
    rule = members("ADMIN", "VIEWER") | system() | services("api")
    async with open_shop(shop, guard_of(rule), limits=ServerLimits(key_calls_max=6)) as counter:

        async def opened(**who: Any) -> int:
            """Open calls until one is refused."""
            stub, count = counter.stub(**who), 0
            while True:
                calls.append(stub.Chat(timeout=60))
                try:
                    with contextlib.suppress(asyncio.InvalidStateError):  # it may be refused already
                        await calls[-1].write(counter.order())
                    await calls[-1].read()
                except grpc.aio.AioRpcError as failure:
                    refusals.append(remote_error(failure))
                    return count
                count += 1

        calls: list[Any] = []
        refusals: list[RemoteError] = []
        assert await opened(bearer="admin") == 2
        assert await opened(bearer="viewer") == 1
        assert await opened(bearer="system") == 1
        assert {(each.code.name, each.reason) for each in refusals} == {("RESOURCE_EXHAUSTED", "CALLS_EXCEEDED")}
        assert [each.quota[0].subject for each in refusals] == ["this key", "this workspace", "this key"]
        api = counter.stub(credential=ServiceCredential([SECRET], "api"))
        mine = [api.Chat(timeout=60) for _ in range(7)]
        for call in mine:
            await call.write(counter.order())
            assert (await call.read()).receipt, "services are not counted"
        for call in (*calls, *mine):
            call.cancel()
        assert await served_at_last(lambda: counter.stub(bearer="admin").Buy(counter.order()))


async def test_calls_beyond_those_of_one_connection_end_before_they_reach_the_guard(shop: Shop) -> None:
    async with open_shop(shop, guard_of(), limits=ServerLimits(connection_calls_max=5)) as counter:
        connection = await asyncio.to_thread(Connection, counter.address)
        opened = ended = 0
        while not ended and opened < 20:
            connection.open(CHAT, [("authorization", "Bearer admin")])
            opened += 1
            # The first five are kept open.
            ended = await asyncio.to_thread(connection.ended, 1, wait_seconds=0.0 if opened <= 5 else 1.0)
        assert opened < 20
        assert (await counter.stub(bearer="admin").Buy(counter.order())).receipt
        connection.close()


async def test_further_calls_of_one_connection_wait_until_others_have_ended(shop: Shop) -> None:
    async with open_shop(shop, guard_of(), limits=ServerLimits(connection_calls_max=5)) as counter:
        stub = counter.stub(bearer="admin")

        async def talk() -> Any:
            chat = stub.Chat(timeout=60)
            await chat.write(counter.order("boots"))
            assert (await chat.read()).receipt == "boots"
            return chat

        chats = [await talk() for _ in range(5)]
        waiting = asyncio.create_task(talk())
        assert (await counter.stub(bearer="admin").Buy(counter.order())).receipt, "another connection is not held up"
        assert not waiting.done()
        await chats.pop().done_writing()
        chats.append(await waiting)
        for chat in chats:
            chat.cancel()


class SlowRing(KeyRing):
    """Finds no key before it is told to."""

    def __init__(self) -> None:
        self.asked, self.found = asyncio.Semaphore(0), asyncio.Event()

    def known(self, key: str) -> Identity | None:
        return Identity(CallerKind.MEMBER, "key-known", "w", "ADMIN") if key == "known" else None

    async def identify(self, key: str) -> Identity:
        self.asked.release()
        await self.found.wait()
        return await super().identify(key)


async def test_calls_of_one_address_whose_key_is_looked_up_are_few(shop: Shop) -> None:
    keys = SlowRing()
    guard = Guard(dict.fromkeys(SHOP_METHODS, members("ADMIN")), keys=keys)
    async with (
        open_shop(shop, guard, limits=ServerLimits(unknown_calls_max=4)) as counter,
        cable(counter.address, "127.0.0.2") as elsewhere,
    ):
        stub, other = counter.stub(bearer="admin"), counter.stub_to(elsewhere.address, bearer="admin")
        waiting = [stub.Buy(counter.order(), timeout=60) for _ in range(2)]
        for _ in waiting:
            await keys.asked.acquire()
        assert (await refused(stub.Buy(counter.order()))).reason == "OPEN_CALLS_EXCEEDED"
        assert (await counter.stub(bearer="known").Buy(counter.order())).receipt, "a known key is not looked up"
        waiting.append(other.Buy(counter.order(), timeout=60))
        await keys.asked.acquire()
        assert (await refused(other.Buy(counter.order()))).reason == "OPEN_CALLS_EXCEEDED"
        keys.found.set()
        assert all(answer.receipt for answer in await asyncio.gather(*waiting))
        assert (await stub.Buy(counter.order())).receipt


async def test_little_of_a_request_is_taken_before_its_caller_is_known(shop: Shop) -> None:
    keys = SlowRing()
    guard = Guard(dict.fromkeys(SHOP_METHODS, members("ADMIN")), keys=keys)
    async with open_shop(shop, guard) as counter:
        connection = await asyncio.to_thread(Connection, counter.address)
        call = connection.open(BUY, [("authorization", "Bearer admin")])
        await keys.asked.acquire()

        async def taken(data: bytes) -> int:
            return await asyncio.to_thread(connection.send, call, data, wait_seconds=1.0)

        # A length of one mebibyte, and more than all of it.
        assert await taken(b"\0\0\x10\0\0" + bytes(2 * MEBIBYTE)) in (65_535, 65_536)
        keys.found.set()
        assert await taken(bytes(2 * MEBIBYTE)) >= MEBIBYTE - 65_536
        connection.close()


@pytest.mark.parametrize("method", [*SHOP_METHODS[:2], PACK])
@pytest.mark.parametrize(
    ("rule", "limits"),
    [
        (members("ADMIN"), ServerLimits(key_receive_seconds=0.5, open_receive_seconds=60)),
        (anyone(), ServerLimits(key_receive_seconds=60, open_receive_seconds=0.5)),
    ],
)
async def test_request_has_to_arrive_in_time(shop: Shop, method: str, rule: Rule, limits: ServerLimits) -> None:
    async with open_shop(shop, guard_of(rule.within(None)), limits=limits) as counter:
        silent = counter.channel(bearer="admin").stream_stream(method)(timeout=20)
        refusal = await refused(silent.read())
        assert (refusal.code.name, refusal.reason) == ("DEADLINE_EXCEEDED", "DEADLINE_PASSED")
        assert "did not arrive" in str(refusal)


async def test_each_message_of_a_stream_has_to_arrive_in_time(shop: Shop) -> None:
    """Our own services may send when they like."""
    async with open_shop(shop, guard_of(), limits=ServerLimits(key_receive_seconds=0.5)) as counter:
        calls = [
            counter.stub(**who).Pack(timeout=20)
            for who in ({"bearer": "admin"}, {"credential": ServiceCredential([SECRET], "api")})
        ]
        for call in calls:
            await call.write(counter.order("boots"))
        assert (await refused(calls[0])).reason == "DEADLINE_PASSED"
        await calls[1].done_writing()
        assert (await calls[1]).receipt == "boots"


async def test_streams_that_never_begin_are_few(shop: Shop) -> None:
    limits = ServerLimits(key_arriving_bytes_max=8 * 5 * MEBIBYTE, key_slow_seconds=0.1)
    async with open_shop(shop, guard_of(members("ADMIN") | system()), limits=limits) as counter:
        silent = [counter.stub(bearer="admin").Pack(timeout=20) for _ in range(3)]
        ended, _ = await asyncio.wait([asyncio.ensure_future(call) for call in silent], return_when="FIRST_COMPLETED")
        for each in ended:
            assert (await refused(each)).reason == "SLOW_REQUESTS_EXCEEDED"
        other = counter.stub(bearer="system").Pack()
        await other.write(counter.order("boots"))
        await other.done_writing()
        assert (await other).receipt == "boots"
        for call in silent:
            call.cancel()


async def test_requests_in_service_hold_so_much_memory_of_a_workspace_and_no_more(shop: Shop) -> None:
    rule = members("ADMIN", "VIEWER") | system() | services("api")
    notes = ["boots"] * 1_000
    room = held_by_request(shop.messages.BuyRequest(shoe="slow", notes=notes).SerializeToString())
    async with open_shop(shop, guard_of(rule), limits=ServerLimits(key_held_bytes_max=4 * room)) as counter:

        def buy(bearer: str, shoe: str = "slow") -> Any:
            return counter.stub(bearer=bearer).Buy(counter.order(shoe, notes=notes), timeout=60)

        waiting = [asyncio.ensure_future(buy(bearer)) for bearer in ("admin", "viewer", "admin")]
        (over,), _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        refusal = await refused(over)
        assert (refusal.code.name, refusal.reason) == ("RESOURCE_EXHAUSTED", "LARGE_REQUESTS_EXCEEDED")
        assert refusal.retry_after == 1.0
        assert [each.subject for each in refusal.quota] == ["this workspace"]
        assert (await counter.stub(bearer="admin").Buy(counter.order())).receipt, "a small request needs no room"
        assert (await buy("system", "clog")).receipt, "another workspace has a share of its own"
        api = counter.stub(credential=ServiceCredential([SECRET], "api"))
        mine = [asyncio.ensure_future(api.Buy(counter.order("slow", notes=notes))) for _ in range(5)]
        assert (await api.Buy(counter.order(notes=notes))).receipt, "services are not counted"
        for call in (*waiting, *mine):
            call.cancel()
        assert await served_at_last(lambda: buy("admin", "clog"))


@pytest.mark.parametrize("method", SHOP_METHODS[:2])
async def test_answers_that_nobody_reads_hold_so_much_memory_of_a_workspace_and_no_more(
    shop: Shop, method: str
) -> None:
    limits = ServerLimits(key_answers_bytes_max=12 * len(LARGE) + 4 * 1024)
    rule = members("ADMIN", "VIEWER") | system() | services("api")
    # Callers that take five bytes of an answer before they read it.
    options = [("grpc.http2.lookahead_bytes", 5), ("grpc.http2.bdp_probe", 0)]
    async with (
        open_shop(shop, guard_of(rule), limits=limits) as counter,
        grpc.aio.insecure_channel(counter.address, options=options) as channel,
    ):

        async def asked(who: tuple[tuple[str, str], ...]) -> Any:
            call: Any = channel.stream_stream(method)(metadata=who, timeout=60)
            await call.write(counter.order("large").SerializeToString())
            await call.done_writing()
            return call

        def key(name: str) -> tuple[tuple[str, str], ...]:
            return (("authorization", f"Bearer {name}"),)

        api = ServiceCredential([SECRET], "api").metadata
        unread = [await asked(who) for who in (key("admin"), key("viewer"), api, api, api)]
        for call in unread:
            await call.initial_metadata()
        refusal = await refused((await asked(key("admin"))).read())
        assert (refusal.code.name, refusal.reason) == ("RESOURCE_EXHAUSTED", "LARGE_ANSWERS_EXCEEDED")
        assert len(await (await asked(key("system"))).read()) > len(LARGE), "another workspace has a share of its own"
        assert (await counter.stub(bearer="admin").Buy(counter.order())).receipt, "a small answer needs no room"
        for call in unread:
            assert len(await call.read()) > len(LARGE)
        assert await served_at_last(lambda: counter.stub(bearer="admin").Buy(counter.order("large"))) == LARGE


async def test_a_workspace_has_some_slow_requests_and_no_more(shop: Shop) -> None:
    limits = ServerLimits(key_arriving_bytes_max=8 * 5 * MEBIBYTE, key_slow_seconds=0.1)
    async with open_shop(
        shop, guard_of(members("ADMIN", "VIEWER") | system() | services("api")), limits=limits
    ) as counter:
        buy, view = (counter.channel(bearer=key).stream_stream(BUY) for key in ("admin", "viewer"))
        slow = [make(timeout=60) for make in (buy, view, buy)]
        reads = {asyncio.create_task(call.read()): call for call in slow}
        (ended,), _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        slow.remove(reads.pop(ended))
        refusal = await refused(ended)
        assert (refusal.code.name, refusal.reason) == ("RESOURCE_EXHAUSTED", "SLOW_REQUESTS_EXCEEDED")
        assert (await counter.stub(bearer="admin").Buy(counter.order())).receipt, "a quick request needs no place"
        # The caller of another workspace and a service are slow too, and are not refused.
        others = counter.channel(bearer="system"), counter.channel(credential=ServiceCredential([SECRET], "api"))
        slow += [channel.stream_stream(BUY)(timeout=60) for channel in (*others, others[1], others[1])]
        reads |= {asyncio.create_task(call.read()): call for call in slow[2:]}
        refusal = await refused(buy(timeout=60).read())
        assert refusal.reason == "SLOW_REQUESTS_EXCEEDED"
        for call in slow:
            await call.write(counter.order().SerializeToString())
            await call.done_writing()
        assert all(await asyncio.gather(*reads))
        assert await served_at_last(lambda: counter.stub(bearer="admin").Buy(counter.order()))


async def test_requests_that_are_not_slow_yet_hold_so_much_memory_and_no_more(shop: Shop) -> None:
    # Two requests of one workspace may arrive at once, and none of them is ever slow.
    limits = ServerLimits(key_arriving_bytes_max=8 * 5 * MEBIBYTE, key_slow_seconds=60)
    guard = guard_of(members("ADMIN") | system())
    # A length of one mebibyte, and so much less that it is never whole.
    part = b"\0\0\x10\0\0" + bytes(MEBIBYTE - 1)
    async with open_shop(shop, guard, limits=limits) as counter:
        connection = await asyncio.to_thread(Connection, counter.address)

        async def taken(key: str = "admin") -> tuple[int, int]:
            call = connection.open(BUY, [("authorization", f"Bearer {key}")])
            return call, await asyncio.to_thread(connection.send, call, part, wait_seconds=0.5)

        calls = [await taken() for _ in range(3)]
        assert [size for _, size in calls] == [len(part)] * 2 + [65_536]
        assert (await taken("system"))[1] == len(part), "another workspace has a share of its own"
        await asyncio.to_thread(connection.send, calls[0][0], b"\0", wait_seconds=5.0)
        connection.finish(calls[0][0])
        rest = part[65_536:]
        assert await asyncio.to_thread(connection.send, calls[2][0], rest, wait_seconds=20.0) == len(rest)
        connection.close()
        assert await served_at_last(lambda: counter.stub(bearer="admin").Buy(counter.order()))


async def test_messages_of_a_stream_without_a_key_have_to_arrive_in_time_too(shop: Shop) -> None:
    async with open_shop(shop, guard_of(), limits=ServerLimits(open_receive_seconds=0.5)) as counter:
        call = counter.channel().stream_stream(
            f"/{V1}/{METHOD}",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )(timeout=20)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        assert (await call.read()).list_services_response.service
        assert (await refused(call.read())).reason == "DEADLINE_PASSED"


@pytest.mark.parametrize("method", SHOP_METHODS)
async def test_a_caller_that_never_sends_the_request_is_asked_for_a_key(shop: Shop, method: str) -> None:
    async with open_shop(shop, guard_of(), limits=ServerLimits(rpcs_at_once_max=2)) as counter:
        for _ in range(3):
            silent = counter.channel().stream_stream(method)(timeout=20)
            assert (await refused(silent.read())).reason == "KEY_MISSING"
        assert (await counter.stub(bearer="admin").Buy(counter.order())).receipt


@pytest.mark.parametrize("method", SHOP_METHODS[:2])
async def test_a_call_without_a_request_is_refused(counter: Counter, method: str) -> None:
    silent = counter.channel(bearer="admin").stream_stream(method)(timeout=20)
    await silent.done_writing()
    refusal = await refused(silent.read())
    assert (refusal.code.name, refusal.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("rule", "limits", "reason"),
    [
        (anyone(), ServerLimits(open_calls_max=4), "OPEN_CALLS_EXCEEDED"),
        (members("ADMIN"), ServerLimits(key_calls_max=6), "CALLS_EXCEEDED"),
    ],
)
async def test_call_counts_until_its_answer_is_read(shop: Shop, rule: Rule, limits: ServerLimits, reason: str) -> None:
    async with open_shop(shop, guard_of(rule), limits=limits) as counter:
        # A caller that takes five bytes of an answer before it reads it.
        options = [("grpc.http2.lookahead_bytes", 5), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(counter.address, options=options) as channel:
            metadata = (("authorization", "Bearer admin"),)
            unread: list[Any] = [channel.stream_stream(BUY)(metadata=metadata) for _ in range(2)]
            for call in unread:
                await call.write(counter.order().SerializeToString())
                await call.done_writing()
                await call.initial_metadata()
            stub = counter.stub(bearer="admin")
            assert (await refused(stub.Buy(counter.order()))).reason == reason
            for call in unread:
                await call.read()
            assert await served_at_last(lambda: stub.Buy(counter.order()))
