"""The promises that every session store keeps, in memory and in PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

import pytest
import pytest_asyncio
from sqlalchemy import MetaData
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from services.chassis.lease.frames import Attach
from services.chassis.lease.timing import LeaseTiming
from services.chassis.postgres.database import Database
from services.chassis.session.postgres import PostgresSessionStore
from services.chassis.session.store import SessionStore
from services.chassis.session.tables import session_table
from tests.support.manual_clock import ManualClock
from tests.support.postgres import PostgresCluster
from tests.support.probe import some
from tests.support.session_store import MemorySessionStore

TIMING = LeaseTiming(term=100.0, beat=1.0, self_fence=50.0, granted_again=120.0, closed_grace=1.0, idempotent_grace=1.0)
SECOND_LOOK = TIMING.second_look
TABLE = session_table("holders_sessions", MetaData(schema="public"))
TABLE_NAME = TABLE.fullname


class World(Protocol):
    """A store and its time."""

    store: SessionStore

    async def wait(self, seconds: float) -> None: ...


class MemoryWorld:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store: SessionStore = MemorySessionStore(TIMING, self.clock)

    async def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)


class PostgresWorld:
    """The database's clock cannot be moved, so its rows are moved into the past."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.store: SessionStore = PostgresSessionStore(database, TABLE_NAME, TIMING)

    async def wait(self, seconds: float) -> None:
        await self.database.execute(
            f"UPDATE {TABLE_NAME} SET lease_until = lease_until - s.p, heard_time = heard_time - s.p,"
            " suspect_time = suspect_time - s.p, ended_time = ended_time - s.p"
            " FROM (SELECT %s::float8 * interval '1 second' AS p) s",
            (seconds,),
        )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def holders(postgres: PostgresCluster) -> AsyncIterator[Database]:
    made = await postgres.database()
    database = Database(made.superuser_url, name="contract", connections=4)
    await database.execute(str(CreateTable(TABLE).compile(dialect=postgresql.dialect())))
    yield database
    await database.close()
    await postgres.drop(made)


@pytest_asyncio.fixture(params=["memory", "postgres"], loop_scope="session")
async def world(request: pytest.FixtureRequest, holders: Database) -> World:
    if request.param == "memory":
        return MemoryWorld()
    await holders.execute(f"TRUNCATE {TABLE_NAME}")
    return PostgresWorld(holders)


def attach(instance_id: str) -> Attach:
    return Attach("holder", instance_id, 5, version="1.0", labels={"zone": "a"}, modules=("noop@1",))


async def test_first_attach_opens_and_a_second_renews(world: World):
    assert await world.store.open(attach("i"), "key")
    await world.wait(TIMING.term + 1)
    assert await world.store.open(attach("i"), "key")
    assert await world.store.sweep() == []
    await world.wait(SECOND_LOOK + 1)
    assert await world.store.sweep() == []
    assert await world.store.ended_among(["i"]) == []


async def test_renewal_refuses_the_unknown_and_the_ended_alone(world: World):
    await world.store.open(attach("lives"), "key")
    await world.store.open(attach("ended"), "key")
    await world.store.end_if_unheard("ended", await world.store.now())
    assert await world.store.renew(["lives", "ended", "unknown"]) == {"ended", "unknown"}
    assert await world.store.renew([]) == set()


async def test_instance_belongs_to_the_caller_that_opened_it(world: World):
    await world.store.open(attach("i"), "key")
    assert not await world.store.open(attach("i"), "another key")
    assert await world.store.open(attach("i"), "key")


async def test_ended_instance_never_comes_back(world: World):
    await world.store.open(attach("i"), "key")
    await world.store.end_if_unheard("i", await world.store.now())
    assert not await world.store.open(attach("i"), "key")
    assert await world.store.renew(["i"]) == {"i"}
    assert [each.instance_id for each in await world.store.ended_among(["i"])] == ["i"]


async def test_closed_instance_ends_when_nobody_heard_it_since(world: World):
    await world.store.open(attach("i"), "key")
    await world.wait(3.0)
    closed_time = await world.store.now()
    ended = some(await world.store.end_if_unheard("i", closed_time))
    assert (ended.instance_id, ended.holder) == ("i", "holder")
    assert ended.unheard_seconds == pytest.approx(3.0, abs=1.0)
    again = await world.store.end_if_unheard("i", closed_time)
    assert again is not None, "who asks later hears it too"


async def test_closed_instance_is_unheard_until_a_replica_hears_it_or_it_ends(world: World):
    await world.store.open(attach("i"), "key")
    closed_time = await world.store.now()
    await world.wait(1.0)
    assert await world.store.is_unheard("i", await world.store.now())
    assert not await world.store.is_unheard("unknown", await world.store.now())
    assert await world.store.renew(["i"]) == set()
    assert not await world.store.is_unheard("i", closed_time)
    await world.store.end_if_unheard("i", await world.store.now())
    assert not await world.store.is_unheard("i", await world.store.now())


async def test_closed_instance_lives_when_it_was_heard_since(world: World):
    await world.store.open(attach("i"), "key")
    closed_time = await world.store.now()
    await world.wait(0.001)
    assert await world.store.renew(["i"]) == set()
    assert await world.store.end_if_unheard("i", closed_time) is None
    assert await world.store.ended_among(["i"]) == []


async def test_unknown_instance_is_neither_closed_nor_alive(world: World):
    assert await world.store.end_if_unheard("unknown", await world.store.now()) is None
    (ended,) = await world.store.ended_among(["unknown"])
    assert (ended.instance_id, ended.unheard_seconds) == ("unknown", float("inf"))


async def test_sweep_ends_the_silent_at_its_second_look(world: World):
    await world.store.open(attach("silent"), "key")
    await world.wait(TIMING.term - 1)
    assert await world.store.sweep() == []
    await world.wait(2)
    assert await world.store.sweep() == [], "the first look only suspects"
    await world.wait(SECOND_LOOK - 1)
    assert await world.store.sweep() == []
    await world.wait(2)
    (ended,) = await world.store.sweep()
    assert ended.instance_id == "silent"
    assert ended.unheard_seconds == pytest.approx(TIMING.granted_again + 2, abs=1.0)
    assert await world.store.sweep() == [], "told once"
    assert await world.store.renew(["silent"]) == {"silent"}


async def test_beat_after_the_first_look_clears_the_suspicion(world: World):
    await world.store.open(attach("late"), "key")
    await world.wait(TIMING.term + 1)
    await world.store.sweep()
    assert await world.store.renew(["late"]) == set()
    await world.wait(SECOND_LOOK + 1)
    assert await world.store.sweep() == []
    # It is overdue once more, and is suspected again instead of ended at the first look.
    await world.wait(TIMING.term)
    assert await world.store.sweep() == []


async def test_ended_are_found_among_many(world: World):
    for name in ("a", "b", "c"):
        await world.store.open(attach(name), "key")
    await world.store.end_if_unheard("b", await world.store.now())
    assert [each.instance_id for each in await world.store.ended_among(["a", "b", "c"])] == ["b"]
    assert await world.store.ended_among([]) == []


async def test_replicas_renew_overlapping_holders_at_once(world: World):
    """Every replica's statement succeeds, in whatever order it names the holders."""
    names = [f"i{number}" for number in range(50)]
    for name in names:
        await world.store.open(attach(name), "key")
    orders = [names, names[::-1], sorted(names, key=lambda name: name[::-1]), names[25:] + names[:25]]
    for _ in range(10):
        refused = await asyncio.gather(*(world.store.renew(order) for order in orders), world.store.sweep())
        assert refused[:-1] == [set()] * len(orders)


async def test_ended_instance_is_shown_for_a_day_and_then_forgotten(world: World):
    async def end(name: str) -> None:
        await world.store.open(attach(name), "key")
        await world.store.end_if_unheard(name, await world.store.now())

    hour = 3600.0
    await end("old")
    await world.wait(2 * hour)
    await end("recent")
    await world.wait(23 * hour)
    await world.store.sweep()
    shown = {each.instance_id: each.holder for each in await world.store.ended_among(["old", "recent"])}
    assert shown == {"old": "", "recent": "holder"}
    assert not await world.store.open(attach("recent"), "key"), "it never comes back"


async def test_instance_that_is_heard_is_kept_however_old_it_is(world: World):
    await world.store.open(attach("lives"), "key")
    await world.wait(30 * 3600.0)
    assert await world.store.renew(["lives"]) == set()
    await world.store.sweep()
    assert await world.store.ended_among(["lives"]) == []
