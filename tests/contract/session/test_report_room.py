"""Unanswered reports may hold limited memory of a server. Beyond it their stream is not read, and loses nothing."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.chassis.identity.callers import CallerKind, Identity
from services.chassis.lease.frames import Beat, HolderFrame, Report
from services.chassis.lease.timing import EXECUTION
from services.chassis.session.server import ServerSession
from services.chassis.session.stream_limits import SessionLimits
from tests.support.lease_hop import RawHolder, Replica, raw, report_of, serving
from tests.support.probe import until
from tests.support.session_store import MemorySessionStore

SECONDS = 20.0
# During these terms nothing happens by itself.
SLOW = EXECUTION.scaled(60.0)
REPORT_BYTES = 100_000
ROOM_BYTES = 2 * REPORT_BYTES
KEY = Identity(CallerKind.RUNNER, "key")
SERVICE = Identity(CallerKind.SERVICE, "runner")


@pytest.fixture
def store() -> MemorySessionStore:
    return MemorySessionStore(SLOW)


def large(number: int) -> Report:
    return report_of(f"r{number}", "x", output=b"x" * REPORT_BYTES)


@asynccontextmanager
async def reporting(
    replica: Replica, name: str, *numbers: int, who: Identity = KEY
) -> AsyncIterator[tuple[RawHolder, ServerSession]]:
    """A holder that sends each report in a frame of its own, and then beats."""
    async with raw(replica, who) as holder:
        await holder.attach(name)

        async def say() -> None:
            for number in numbers:
                await holder.say(HolderFrame(reports=[large(number)]))
            await holder.say(HolderFrame(beat=Beat(1, True, 0)))

        saying = asyncio.create_task(say())
        session = await until(lambda: replica.registry.of_instance(name), SECONDS, "the session")
        try:
            yield holder, session
        finally:
            saying.cancel()
            await asyncio.wait([saying])


def heard(replica: Replica) -> list[str]:
    return [each.report_id for each in replica.owner.reports]


async def test_stream_is_read_no_further_until_its_reports_are_answered(store: MemorySessionStore):
    async with serving(store, timing=SLOW, limits=SessionLimits(stream_bytes_max=ROOM_BYTES)) as replica:
        replica.owner.is_acknowledging = False
        async with reporting(replica, "one", *range(5)) as (holder, session):
            for count in range(2, 5):
                await until(lambda: session.room.is_awaited, SECONDS, "the pause")
                assert heard(replica) == [f"r{number}" for number in range(count)]
                session.acknowledge([f"r{count - 2}"])
                await until(lambda: f"r{count}" in heard(replica), SECONDS, "the next")  # noqa: B023
            await until(lambda: session.room.is_awaited, SECONDS, "the pause")
            session.acknowledge(heard(replica)[3:])
            while (frame := await holder.hear()) is not None and frame.beat is None:
                pass
            assert frame is not None, "the beat behind them was heard, and the stream is open"


async def test_streams_of_one_key_have_one_room_and_no_other_caller_waits_for_it(store: MemorySessionStore):
    async with serving(store, timing=SLOW, limits=SessionLimits(key_bytes_max=ROOM_BYTES)) as replica:
        replica.owner.is_acknowledging = False
        async with reporting(replica, "one", 0, 1, 2) as (_, one):
            await until(lambda: one.room.is_awaited, SECONDS, "the pause")
            async with reporting(replica, "two", 10, 11) as (_, two):
                await until(lambda: two.room.is_awaited, SECONDS, "the pause of its other stream")
                # The frame that was being read when the room ended is heard whole.
                assert heard(replica) == ["r0", "r1", "r10"]
                async with reporting(replica, "own", *range(20, 24), who=SERVICE):
                    await until(lambda: len(heard(replica)) == 7, SECONDS, "the reports of a service")
                one.acknowledge(["r0", "r1"])
                await until(lambda: {"r2", "r11"} <= set(heard(replica)), SECONDS, "the rest")


async def test_what_a_closed_stream_brought_takes_room_as_long_as_it_is_kept(store: MemorySessionStore):
    async with serving(store, timing=SLOW, limits=SessionLimits(key_bytes_max=ROOM_BYTES)) as replica:
        owner = replica.owner
        owner.is_acknowledging = False
        async with reporting(replica, "one", 0, 1):
            await until(lambda: len(owner.reports) == 2, SECONDS, "the reports")
        await until(lambda: owner.closed, SECONDS, "the end of the stream")
        async with reporting(replica, "two", 2, 3) as (_, two):
            await until(lambda: two.room.is_awaited, SECONDS, "the pause")
            assert heard(replica) == ["r0", "r1", "r2"]
            # From now on nobody can answer them.
            owner.attached.clear()
            owner.closed.clear()

            def is_read() -> bool:
                gc.collect()
                return "r3" in heard(replica)

            await until(is_read, SECONDS, "the rest")


async def test_instance_lives_on_unheard_while_answers_go_out(store: MemorySessionStore):
    async with serving(
        store, timing=SLOW, limits=SessionLimits(stream_bytes_max=ROOM_BYTES), with_loops=False
    ) as replica:
        replica.owner.is_acknowledging = False
        renewing = asyncio.create_task(replica.registry.run_beats())
        async with raw(replica) as holder:
            await holder.attach("one")
            await holder.say(HolderFrame(reports=[large(number) for number in range(4)]))
            session = await until(lambda: replica.registry.of_instance("one"), SECONDS, "the session")
            await until(lambda: session.room.is_awaited, SECONDS, "the pause")
            replica.registry.tick(time.monotonic())
            assert session.take_frame() is None, "nothing is answered: the silence is true"
            session.acknowledge(["r0"])
            replica.registry.tick(time.monotonic())
            while (frame := await holder.hear()) is not None and frame.demand is None:
                pass
            assert frame is not None
            await until(lambda: store.renewed == ["one"], SECONDS, "the renewal")
            replica.registry.tick(time.monotonic() + SLOW.self_fence)
            assert session.take_frame() is None, "the last answer is too long ago"
        renewing.cancel()
        await asyncio.wait([renewing])
