"""The guard before every handler, as callers see it."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc
import pytest
from google.protobuf import empty_pb2

from services.chassis.grpc.guard import Guard
from services.chassis.identity.callers import ServiceCredential, anyone, members, services
from services.chassis.telemetry.tracing import FinishedSpan, Sampler, new_trace, parse_traceparent
from tests.support.nested import nested_struct, with_tag
from tests.support.probe import some
from tests.unit.chassis.shop import SECRET, SHOP_METHODS, Counter, KeyRing, Shop, guard_of, open_shop, refused

BUY, _, _, PACK = SHOP_METHODS


async def test_a_caller_that_is_allowed_is_served_and_known(counter: Counter) -> None:
    answer = await counter.stub(bearer="admin").Buy(counter.order())
    assert answer.receipt == "member:ADMIN key-admin"
    credential = ServiceCredential([SECRET], "api")
    answer = await counter.stub(credential=credential).Buy(counter.order())
    assert answer.receipt == "service:api api"


@pytest.mark.parametrize(
    ("metadata", "code", "reason"),
    [
        ((), "UNAUTHENTICATED", "KEY_MISSING"),
        ((("authorization", "Bearer nobody"),), "UNAUTHENTICATED", "KEY_INVALID"),
        ((("authorization", "Basic YWRtaW46"),), "UNAUTHENTICATED", "KEY_INVALID"),
        ((("authorization", ""),), "UNAUTHENTICATED", "KEY_INVALID"),
        ((("x-windlass-service", "api:00"),), "UNAUTHENTICATED", "KEY_INVALID"),
        ((("authorization", "Bearer viewer"),), "PERMISSION_DENIED", "ROLE_REQUIRED"),
        ((("authorization", "Bearer unreachable"),), "UNAVAILABLE", "DEPENDENCY_UNAVAILABLE"),
        (ServiceCredential([SECRET], "runner").metadata, "PERMISSION_DENIED", "ROLE_REQUIRED"),
    ],
)
async def test_a_caller_that_is_not_allowed_is_refused(counter: Counter, metadata: Any, code: str, reason: str) -> None:
    stub = counter.stub()
    for refusal in (
        await refused(stub.Buy(counter.order(), metadata=metadata)),
        await refused(stub.Follow(counter.order(), metadata=metadata).read()),
        await refused(stub.Chat(metadata=metadata).read()),
    ):
        assert (refusal.code.name, refusal.reason) == (code, reason)
        assert refusal.metadata["try"].startswith("windlass ")


@pytest.mark.parametrize("keys", [("admin", "nobody"), ("nobody", "admin"), ("admin", "admin"), ("system", "admin")])
async def test_a_call_with_two_keys_is_refused(counter: Counter, keys: tuple[str, str]) -> None:
    """Otherwise a call could be served for one key, and go on when that one is revoked, because the other is not."""
    metadata, stub = [("authorization", f"Bearer {key}") for key in keys], counter.stub()
    for refusal in (
        await refused(stub.Buy(counter.order(), metadata=metadata)),
        await refused(stub.Follow(counter.order(), metadata=metadata).read()),
        await refused(stub.Chat(metadata=metadata).read()),
    ):
        assert (refusal.code.name, refusal.reason) == ("UNAUTHENTICATED", "KEY_INVALID")
        assert "more than one" in str(refusal)


async def test_without_a_key_nobody_learns_what_is_well_formed(counter: Counter) -> None:
    refusal = await refused(counter.stub().Buy(counter.order(shoe="")))
    assert refusal.reason == "KEY_MISSING"


async def test_an_open_method_looks_at_no_credential(shop: Shop) -> None:
    async with open_shop(shop, Guard(dict.fromkeys(SHOP_METHODS, anyone()))) as counter:
        two = [("authorization", "Bearer more")] * 2
        answer = await counter.stub(bearer="nonsense").Buy(counter.order(), metadata=two)
        assert answer.receipt.startswith("anonymous")


async def test_without_readers_no_credential_is_good(shop: Shop) -> None:
    rule = members("ADMIN") | services("api")
    async with open_shop(shop, Guard(dict.fromkeys(SHOP_METHODS, rule))) as counter:
        for who in ({"bearer": "admin"}, {"credential": ServiceCredential([SECRET], "api")}):
            assert (await refused(counter.stub(**who).Buy(counter.order()))).reason == "KEY_INVALID"


async def test_each_faulty_field_is_named(counter: Counter) -> None:
    stub = counter.stub(bearer="admin")
    bad = counter.order(shoe="", pairs=11)
    for refusal in (await refused(stub.Buy(bad)), await refused(stub.Follow(bad).read())):
        assert (refusal.code.name, refusal.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        assert {violation.field for violation in refusal.violations} == {"shoe", "pairs"}
        assert "describe shoes.v1.ShopService." in refusal.metadata["try"]


async def test_a_nul_is_refused(counter: Counter) -> None:
    refusal = await refused(counter.stub(bearer="admin").Buy(counter.order(notes=["fine", "\0"])))
    assert (refusal.code.name, refusal.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert [violation.field for violation in refusal.violations] == ["notes[1]"]


def nested(counter: Counter, depth: int) -> bytes:
    """An order in bytes, with free JSON so deep that only a serializer of one's own can make it."""
    return bytes(counter.order().SerializeToString()) + with_tag(3, nested_struct(depth))


@pytest.mark.parametrize("depth", [34, 400, 100_000])
async def test_a_request_nested_beyond_the_parsers_limit_is_refused_and_the_service_lives(
    counter: Counter, depth: int
) -> None:
    channel = counter.channel(bearer="admin")
    assert await channel.unary_unary(BUY)(nested(counter, 32))
    refusal = await refused(channel.unary_unary(BUY)(nested(counter, depth)))
    assert (refusal.code.name, refusal.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert [(each.field, each.reason) for each in refusal.violations] == [("", "TOO_DEEP")]
    assert (await counter.stub(bearer="admin").Buy(counter.order())).receipt


@pytest.mark.parametrize("raw", [b"\xff\xff", b"\x0a\x02\xff\xfe", b"\x0a\x7f"])
async def test_bytes_that_are_no_message_are_the_callers_fault(counter: Counter, raw: bytes) -> None:
    channel = counter.channel(bearer="admin")
    chat = channel.stream_stream(SHOP_METHODS[2])()
    await chat.write(raw)
    for refusal in (await refused(channel.unary_unary(BUY)(raw)), await refused(chat.read())):
        assert (refusal.code.name, refusal.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")


async def test_a_bug_shows_an_id_and_nothing_else(counter: Counter) -> None:
    stub = counter.stub(bearer="admin")
    chat = stub.Chat()
    await chat.write(counter.order("bug"))
    for refusal in (
        await refused(stub.Buy(counter.order("bug"))),
        await refused(stub.Follow(counter.order("bug", pairs=0)).read()),
        await refused(chat.read()),
    ):
        assert (refusal.code.name, refusal.reason) == ("INTERNAL", "INTERNAL")
        assert refusal.metadata.keys() == {"error_id"}
        assert "SELECT" not in str(refusal)
    assert (await stub.Buy(counter.order())).receipt


async def test_faults_beyond_what_trailers_hold_still_arrive(counter: Counter) -> None:
    refusal = await refused(counter.stub(bearer="admin").Buy(counter.order("faults")))
    assert refusal.reason == "INVALID_DEFINITION"
    assert len(refusal.violations) + int(refusal.metadata["violations_omitted"]) == 2_000


async def test_a_call_takes_no_longer_than_its_rule(shop: Shop) -> None:
    async with open_shop(shop, guard_of(members("ADMIN").within(0.05))) as counter:
        refusal = await refused(counter.stub(bearer="admin").Buy(counter.order("slow"), timeout=60))
        assert (refusal.code.name, refusal.reason) == ("DEADLINE_EXCEEDED", "DEADLINE_PASSED")


@pytest.mark.parametrize("method", SHOP_METHODS)
async def test_a_call_whose_request_never_comes_takes_no_longer_either(shop: Shop, method: str) -> None:
    async with open_shop(shop, guard_of(members("ADMIN").within(0.05))) as counter:
        silent = counter.channel(bearer="admin").stream_stream(method)(timeout=20)
        refusal = await refused(silent.read())
        assert (refusal.code.name, refusal.reason) == ("DEADLINE_EXCEEDED", "DEADLINE_PASSED")
        assert (await counter.stub(bearer="admin").Buy(counter.order(), timeout=20)).receipt


def test_request_that_comes_at_the_last_moment_has_no_second_deadline() -> None:
    now = 0.0

    async def read() -> bytes:
        nonlocal now
        now = 59.0
        return b""

    async def answer(request: Any, context: Any) -> Any:
        nonlocal now
        now = 61.0
        for _ in range(5):
            await asyncio.sleep(0)
        return request

    async def call() -> Any:
        asyncio.get_running_loop().time = lambda: now  # type: ignore[method-assign]
        handler: Any = grpc.unary_unary_rpc_method_handler(answer, empty_pb2.Empty.FromString)
        guard = Guard({"/m": anyone().within(60)})
        context = Mock(invocation_metadata=tuple, time_remaining=lambda: None, read=read, abort=AsyncMock(), peer=str)
        served: Any = guard.wrap("/m", handler, request_bytes_max=10)
        await served.stream_unary(None, context)
        return context.abort.call_args

    ended = some(asyncio.run(call()))
    assert ended.args[0] is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_stream_whose_rule_says_so_stays_as_long_as_its_caller(shop: Shop) -> None:
    rules = dict.fromkeys(SHOP_METHODS, members("ADMIN").within(None))
    rules[SHOP_METHODS[0]] = members("ADMIN").within(0.05)
    async with open_shop(shop, Guard(rules, keys=KeyRing())) as counter:
        stub = counter.stub(bearer="admin")
        chat = stub.Chat(timeout=20)
        await chat.write(counter.order())
        await chat.read()
        # This is longer than the other waits.
        assert (await refused(stub.Buy(counter.order("slow"), timeout=60))).reason == "DEADLINE_PASSED"
        await chat.write(counter.order("boot"))
        assert (await chat.read()).receipt == "boot"
        await chat.done_writing()


async def test_a_stream_with_a_limit_ends_as_it_would_without(shop: Shop) -> None:
    async with open_shop(shop, Guard(dict.fromkeys(SHOP_METHODS, anyone()))) as counter:
        stub = counter.stub()
        receipts = [response.receipt async for response in stub.Follow(counter.order(pairs=3), timeout=60)]
        assert receipts == ["0", "1", "2"]
        chat, left = stub.Chat(timeout=20), stub.Chat(timeout=20)
        for each in (chat, left):
            await each.write(counter.order())
            assert (await each.read()).receipt == "clog"
        left.cancel()
        ended = stub.Chat(timeout=20)
        await ended.done_writing()
        assert await ended.read() is grpc.aio.EOF
        assert await ended.code() is grpc.StatusCode.OK
        await chat.write(counter.order("bug"))
        assert (await refused(chat.read())).reason == "INTERNAL"
        assert (await stub.Buy(counter.order())).receipt


async def test_a_callers_own_deadline_holds(counter: Counter) -> None:
    refusal = await refused(counter.stub(bearer="admin").Buy(counter.order("slow"), timeout=0.05))
    assert refusal.code.name == "DEADLINE_EXCEEDED"


async def test_a_call_that_is_cancelled_leaves_the_service_well(counter: Counter) -> None:
    stub = counter.stub(bearer="admin")
    call, chat = asyncio.create_task(stub.Buy(counter.order("slow"))), stub.Chat()
    await chat.write(counter.order())
    await chat.read()
    for each in (call, chat):
        each.cancel()
    assert (await stub.Buy(counter.order())).receipt


async def test_the_trace_of_the_caller_is_known_inside(counter: Counter) -> None:
    stub = counter.stub(bearer="admin")

    async def inside(header: str | None) -> str:
        metadata = (("traceparent", header),) if header is not None else ()
        receipt: str = (await stub.Buy(counter.order("trace"), metadata=metadata)).receipt
        return receipt

    sampled, unsampled = new_trace(True), new_trace(False)
    own = some(parse_traceparent(await inside(sampled.header())))
    assert (own.trace_id, own.sampled) == (sampled.trace_id, True)
    assert own.span_id != sampled.span_id
    assert await inside(unsampled.header()) == unsampled.header()
    assert await inside(None) == ""
    assert await inside("nonsense") == ""


async def test_a_method_may_begin_traces_as_the_sampler_allows(shop: Shop) -> None:
    rule = members("ADMIN").with_trace()
    async with open_shop(shop, guard_of(rule, sampler=Sampler(0.001))) as counter:
        stub = counter.stub(bearer="admin")
        receipts = [(await stub.Buy(counter.order("trace"))).receipt for _ in range(3)]
    assert [receipt[-2:] for receipt in receipts] == ["01", "00", "00"]


async def test_a_sampled_call_is_written_down_as_a_span(counter: Counter, spans: list[FinishedSpan]) -> None:
    stub, parent = counter.stub(bearer="admin"), new_trace(True)
    metadata = (("traceparent", parent.header()),)
    await stub.Buy(counter.order(), metadata=metadata)
    await refused(stub.Buy(counter.order(shoe=""), metadata=metadata))
    await stub.Buy(counter.order(), metadata=(("traceparent", new_trace(False).header()),))
    assert [(span.name, span.parent, span.error, span.kind) for span in spans] == [
        ("shop.Buy", parent, "", "server"),
        ("shop.Buy", parent, "INVALID_ARGUMENT", "server"),
    ]
