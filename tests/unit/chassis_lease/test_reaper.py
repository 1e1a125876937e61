"""The reaper and its guard judge which instances are dead, on a clock that stands still."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

from services.chassis.lease.frames import Attach
from services.chassis.lease.timing import EXECUTION
from services.chassis.process.lifecycle import Process
from services.chassis.session.reaper import SessionReaper, SweepGuard
from services.chassis.session.registry import SessionRegistry
from services.chassis.session.store import EndedInstance
from tests.support.manual_clock import ManualClock
from tests.support.session_store import MemorySessionStore

TERM, BEAT, LOOK = EXECUTION.term, EXECUTION.beat, EXECUTION.second_look


class SlowStore(MemorySessionStore):
    """Each sweep takes `delay` seconds."""

    delay = 0.0

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(EXECUTION, clock)
        self._manual = clock

    async def sweep(self) -> list[EndedInstance]:
        self._manual.advance(self.delay)
        return await super().sweep()


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = SlowStore(self.clock)
        self.watched: set[str] = set()
        self.ended: list[list[str]] = []
        self.guard = SweepGuard(EXECUTION, self.clock.monotonic())
        self.reaper = SessionReaper(self.store, self.guard, self.clock, lambda: self.watched, self.on_ended)

    def on_ended(self, ended: list[EndedInstance]) -> None:
        self.ended.append([each.instance_id for each in ended])

    async def after(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.reaper.run_once()


async def test_silent_instance_is_ended_at_the_second_look():
    world = World()
    await world.store.open(Attach("holder", "i", 1), "key")
    await world.after(TERM + 0.1)
    assert world.ended == []
    await world.after(LOOK)
    assert world.ended == [["i"]]
    await world.after(LOOK)
    assert world.ended == [["i"]], "told once"


async def test_nothing_is_swept_for_a_term_after_the_start():
    world = World()
    await world.after(TERM - 0.1)
    assert world.store.sweeps == 0
    await world.after(0.2)
    assert world.store.sweeps == 1


async def test_outage_ends_nobody():
    world = World()
    await world.store.open(Attach("holder", "i", 1), "key")
    await world.after(TERM - 1)
    await world.store.renew(["i"])
    await world.after(2)
    world.store.is_away = True
    for _ in range(10):
        await world.after(BEAT)
    world.store.is_away = False
    # After twenty seconds every lease is overdue, but for a term nobody is even suspected.
    await world.after(BEAT)
    assert world.store.sweeps == 1
    await world.store.renew(["i"])
    for _ in range(20):
        await world.after(LOOK)
        await world.store.renew(["i"])
    assert world.store.sweeps > 1
    assert world.ended == []


async def test_slow_database_counts_as_an_outage():
    world = World()
    await world.after(TERM)
    world.store.delay = BEAT + 0.1
    await world.after(LOOK)
    world.store.delay = 0.0
    sweeps = world.store.sweeps
    await world.after(LOOK)
    assert world.store.sweeps == sweeps
    await world.after(TERM)
    assert world.store.sweeps == sweeps + 1


async def test_watched_instances_are_asked_after_even_when_nothing_may_be_swept():
    world = World()
    for name in ("ended", "lives"):
        await world.store.open(Attach("holder", name, 1), "key")
    await world.store.end_if_unheard("ended", await world.store.now())
    world.watched = {"ended", "lives"}
    await world.after(0.1)
    assert world.store.sweeps == 0
    assert world.ended == [["ended"]]


async def test_instance_that_is_swept_and_watched_is_told_once():
    world = World()
    await world.store.open(Attach("holder", "i", 1), "key")
    world.watched = {"i"}
    await world.after(TERM + 0.1)
    await world.after(LOOK)
    assert world.ended == [["i"]]


async def test_process_that_was_stopped_itself_has_no_opinion():
    world = World()
    await world.after(TERM)
    now = world.clock.monotonic()
    world.guard.woke(now - BEAT, now)
    assert world.guard.may_sweep(now)
    world.guard.woke(now - BEAT - 0.1, now)
    assert not world.guard.may_sweep(now)


class CancelledStore(MemorySessionStore):
    """Each of its answers is cancelled."""

    async def ended_among(self, instance_ids: Iterable[str]) -> list[EndedInstance]:
        answer: asyncio.Future[list[EndedInstance]] = asyncio.get_running_loop().create_future()
        answer.cancel()
        return await answer


async def test_no_process_goes_on_without_its_sweeps():
    timing = EXECUTION.scaled(0.01)
    registry = SessionRegistry(
        store=CancelledStore(timing),
        timing=timing,
        server="server-0",
        codec=cast("Any", None),
        owner=cast("Any", SimpleNamespace(watched=list)),
    )
    process = Process("dispatcher")
    process.loop("ticks", registry.run_ticks)
    process.loop("sweeps", registry.run_sweeps)
    async with asyncio.timeout(10):
        assert await process.run(lambda _: asyncio.sleep(0)) == 1
