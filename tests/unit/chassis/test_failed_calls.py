"""A call that has failed leaves nothing in memory, however it failed, also when no garbage collector runs."""

from __future__ import annotations

import asyncio
import gc
import traceback
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any

import grpc
import pytest

from services.chassis.grpc import long_calls
from services.chassis.grpc.errors import Refusal
from services.chassis.grpc.limits import ServerLimits
from services.chassis.grpc.long_calls import LongCalls
from services.chassis.identity.callers import Identity, KeyReader, members
from tests.support.probe import until
from tests.unit.chassis.shop import SHOP_METHODS, Counter, Shop, guard_of, open_shop, refused

# An answer of the shop that is large finds no room, and a request that does not come is refused soon.
LIMITS = ServerLimits(key_answers_bytes_max=16 * 1024, key_receive_seconds=0.1)
# Within this time a call of the shop ends that would go on for ever.
RULE = members("ADMIN").within(0.5)
FAILURES = (grpc.aio.AbortError, Refusal, RuntimeError, TimeoutError)


async def _silent(counter: Counter) -> Any:
    return await counter.channel(bearer="admin").stream_stream(SHOP_METHODS[0])().read()


async def _slow(counter: Counter) -> Any:
    return await counter.stub(bearer="admin").Buy(counter.order("slow"))


async def _without_a_key(counter: Counter) -> Any:
    return await counter.stub().Buy(counter.order())


async def _unknown_method(counter: Counter) -> Any:
    return await counter.channel().stream_stream("/shoes.v1.ShopService/Steal")().read()


async def _with_a_bug(counter: Counter) -> Any:
    return await counter.stub(bearer="admin").Buy(counter.order("bug"))


async def _answered_too_largely(counter: Counter) -> Any:
    return await counter.stub(bearer="admin").Buy(counter.order("large"))


async def _answered_too_largely_under_a_deadline(counter: Counter) -> Any:
    return await counter.stub(bearer="admin").Buy(counter.order("large"), timeout=0.4)


async def _streamed_too_largely(counter: Counter) -> Any:
    return [each async for each in counter.stub(bearer="admin").Follow(counter.order("large"))]


class Failures:
    """The failures in memory that hold frames of a service, and so the request and the answer of a call."""

    def __init__(self) -> None:
        # Other tests keep some for themselves: those that their parameters name, for one.
        self._of_others = self._in_memory()

    def kept(self) -> list[BaseException]:
        others = set(map(id, self._of_others))
        return [each for each in self._in_memory() if id(each) not in others]

    @staticmethod
    def _in_memory() -> list[BaseException]:
        failures = [each for each in gc.get_objects() if isinstance(each, FAILURES)]
        return [each for each in failures if any(map(_is_of_a_service, traceback.walk_tb(each.__traceback__)))]


@pytest.fixture
def failures() -> Iterator[Failures]:
    """Those that come from here on, without a collector of garbage."""
    gc.collect()
    gc.disable()
    yield Failures()
    gc.enable()


def _is_of_a_service(place: tuple[FrameType, int]) -> bool:
    return str(place[0].f_globals["__name__"]).startswith("services.")


@pytest.mark.parametrize(
    "fails",
    [
        _silent,
        _slow,
        _without_a_key,
        _unknown_method,
        _with_a_bug,
        _answered_too_largely,
        _answered_too_largely_under_a_deadline,
        _streamed_too_largely,
    ],
)
async def test_a_failed_call_leaves_nothing_in_memory(
    shop: Shop, failures: Failures, fails: Callable[[Counter], Awaitable[Any]]
) -> None:
    async with open_shop(shop, guard_of(RULE), limits=LIMITS) as counter:
        assert (await refused(fails(counter))).reason
        await until(lambda: not failures.kept(), 10, "the failure to be forgotten")


async def test_calls_that_end_with_their_key_leave_nothing_in_memory(
    failures: Failures, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Revoked(KeyReader):
        async def identify(self, key: str) -> Identity:
            raise Refusal("KEY_INVALID", "it was revoked")

    monkeypatch.setattr(long_calls, "CHECK_SECONDS", 0.01)
    calls, reasons = LongCalls(), []

    async def call() -> None:
        try:
            await calls.run("key", asyncio.Event().wait())
        except Refusal as refusal:
            reasons.append(refusal.reason)

    checking = asyncio.create_task(calls.check_keys(Revoked()))
    await asyncio.gather(call(), call())
    assert reasons == ["KEY_INVALID"] * 2
    await until(lambda: not failures.kept(), 10, "the failure to be forgotten")
    checking.cancel()
