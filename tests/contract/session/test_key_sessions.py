"""The streams of one key at a server are limited. Streams beyond the limit cost nobody else a place."""

import asyncio
from contextlib import AsyncExitStack, suppress

import grpc
import pytest

from services.chassis.identity.callers import CallerKind, Identity
from services.chassis.lease.frames import Attach, Beat, HolderFrame, Lease
from services.chassis.session.stream_limits import SessionLimits
from tests.support.lease_hop import FAST, RawHolder, Replica, raw, serving
from tests.support.probe import eventually, some, until
from tests.support.session_store import MemorySessionStore

SECONDS = 20.0
KEY = Identity(CallerKind.RUNNER, "key")
OTHER = Identity(CallerKind.RUNNER, "other")
SERVICE = Identity(CallerKind.SERVICE, "runner")
# With these a holder receives almost nothing of a message before it reads it.
UNREADING = [("grpc.http2.lookahead_bytes", 5), ("grpc.http2.bdp_probe", 0)]


@pytest.fixture
def store() -> MemorySessionStore:
    return MemorySessionStore(FAST)


def leases(count: int) -> list[Lease]:
    return [Lease(str(number), 1) for number in range(count)]


async def fault_of(replica: Replica, who: Identity) -> str:
    """The reason why a stream that attaches is refused; "" when it is served."""
    async with raw(replica, who) as holder:
        heard = asyncio.create_task(holder.hear())
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # a stream that is refused may be over by now
            await holder.say(HolderFrame(attach=Attach("raw", f"of {who.name}", 10)))
        fault = some(await heard).fault
        return "" if fault is None else fault.reason


async def test_key_has_so_many_sessions_and_no_more(store: MemorySessionStore):
    async with serving(store, limits=SessionLimits(key_sessions_max=2)) as replica, AsyncExitStack() as held:
        for number in range(2):
            await (await held.enter_async_context(raw(replica, KEY))).attach(f"one {number}")
        assert await fault_of(replica, KEY) == "KEY_SESSIONS_EXCEEDED"
        async with raw(replica, KEY) as holder:
            assert (await holder.fault()).message == "this key has 2 sessions here: end some, or use another key"
        assert await fault_of(replica, OTHER) == ""
        for number in range(3):
            service = await held.enter_async_context(raw(replica, SERVICE))
            assert (await service.attach(f"own {number}")).attached is not None
        await held.aclose()

        async def is_served() -> bool:
            return await fault_of(replica, KEY) == ""

        await eventually(is_served, SECONDS, "a place of its own")


async def test_keys_of_a_workspace_share_its_part_of_the_sessions(store: MemorySessionStore):
    """It alone gets half of those of all keys. The others, and the reserve of our own services, are left."""
    keys = [KEY._replace(name=f"key {number}", workspace="busy") for number in range(3)]
    limits = SessionLimits(sessions_max=5, keys_sessions_max=4)
    async with serving(store, limits=limits) as replica, AsyncExitStack() as held:
        for key in keys[:2]:
            await (await held.enter_async_context(raw(replica, key))).attach(key.name)
        assert await fault_of(replica, keys[2]) == "TOO_MANY_SESSIONS"
        await (await held.enter_async_context(raw(replica, OTHER))).attach("other")
        service = await held.enter_async_context(raw(replica, SERVICE))
        assert (await service.attach("own")).attached is not None
        await held.aclose()

        async def is_served() -> bool:
            return await fault_of(replica, keys[2]) == ""

        await eventually(is_served, SECONDS, "a place of the workspace")


async def test_all_streams_of_a_key_hold_so_many_leases_and_no_more(store: MemorySessionStore):
    limits = SessionLimits(key_leases_max=3)
    two, three = leases(2), leases(3)
    async with serving(store, limits=limits) as replica, raw(replica, OTHER) as other:
        async with raw(replica, KEY) as one, raw(replica, KEY) as fuller, raw(replica, SERVICE) as own:
            for number, holder in enumerate((one, other, own)):
                assert (await holder.attach(str(number), held=two)).attached is not None
            await fuller.attach("fuller")
            await fuller.say(HolderFrame(beat=Beat(1, True, 2, two)))
            fault = await fuller.fault()
            assert fault.reason == "HELD_EXCEEDED"
            assert "with one key" in fault.message
            async with raw(replica, KEY) as late:
                refused = await late.attach("late", held=two)
                assert some(refused.fault).reason == "HELD_EXCEEDED"
            await own.say(HolderFrame(beat=Beat(1, True, 4, leases(4))))
            await one.say(HolderFrame(beat=Beat(1, True, 3, three)))
            for holder in (own, one):
                while (heard := await holder.hear()) is not None and heard.beat is None:
                    assert heard.fault is None

        async def is_served() -> bool:
            async with raw(replica, KEY) as late:
                return (await late.attach("late", held=three)).attached is not None

        await eventually(is_served, SECONDS, "the leases of the streams that are gone")


async def test_leases_too_many_are_refused_to_who_brings_them_and_to_nobody_else(store: MemorySessionStore):
    limits = SessionLimits(key_leases_max=3)
    async with serving(store, limits=limits) as replica, raw(replica, KEY) as one:
        assert (await one.attach("one", held=leases(2))).attached is not None
        async with raw(replica, KEY, *UNREADING) as unread:
            # Its stream stays open for as long as it does not read why it is refused.
            await unread.say(HolderFrame(attach=Attach("unread", "unread", 1, held=leases(2))))
            await unread.call.initial_metadata()
            await beat(one, Beat(1, True, 2, leases(2)))
            await beat(one, Beat(2, True, 3, leases(3)))


async def beat(holder: RawHolder, said: Beat) -> None:
    """Send the beat and read until its answer."""
    await holder.say(HolderFrame(beat=said))
    while (frame := await holder.hear()) is None or frame.beat is None:
        assert frame is not None
        assert frame.fault is None


async def test_refused_streams_take_no_place_of_others_and_do_not_pile_up(store: MemorySessionStore):
    limits = SessionLimits(sessions_max=2, key_sessions_max=1, key_refused_max=2)
    async with serving(store, limits=limits) as replica, AsyncExitStack() as held:
        await (await held.enter_async_context(raw(replica, KEY))).attach()

        async def is_told_why() -> bool:
            try:
                return await fault_of(replica, KEY) == "KEY_SESSIONS_EXCEEDED"
            except grpc.aio.AioRpcError:
                return False  # the server has not yet noticed that those before are over

        for _ in range(5):
            await eventually(is_told_why, SECONDS, "a place among the refused")
        # The last of them may still count, and then there would not be two places.
        await until(lambda: len(replica.streams) == 1, SECONDS, "the end of the refused streams")
        for _ in range(2):
            unread = await held.enter_async_context(raw(replica, KEY, *UNREADING))
            await unread.call.initial_metadata()
        with pytest.raises(grpc.aio.AioRpcError, match="cancel the streams that were refused"):
            async with raw(replica, KEY) as refused:
                await refused.hear()  # a write to a stream that is over would hide the reason
        assert await fault_of(replica, OTHER) == ""
