"""A fixed number of connections is shared by all calls."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import Column, DateTime, Integer, MetaData, String, Table, and_, bindparam, func, insert, select, update

from services.chassis.postgres.compiled import Composed, compiled
from services.chassis.postgres.connection import Connection
from services.chassis.postgres.database import Database, DatabaseAway
from tests.support.postgres import PostgresCluster
from tests.support.probe import eventually

SHOES = Table(
    "shoes",
    MetaData(),
    Column("id", Integer),
    Column("name", String),
    Column("made", DateTime(timezone=True), server_default=func.now()),
)


@pytest_asyncio.fixture(loop_scope="session")
async def database(postgres: PostgresCluster) -> AsyncIterator[Database]:
    made = await postgres.database()
    opened = Database(made.superuser_url, name="test", connections=2)
    await opened.execute("CREATE TABLE shoes (id int, name text, made timestamptz DEFAULT now())")
    yield opened
    await opened.close()
    await postgres.drop(made)


async def test_calls_share_the_connections_and_wait_their_turn(database: Database) -> None:
    pids = await asyncio.gather(*(database.fetch("SELECT pg_backend_pid() FROM pg_sleep(0.001)") for _ in range(20)))
    assert len({rows[0][0] for rows in pids}) == 2


async def test_a_connection_that_a_cancelled_caller_left_is_given_on_when_it_is_idle(database: Database) -> None:
    release = asyncio.Event()
    inside = asyncio.Event()

    async def linger(connection: Connection) -> None:
        inside.set()
        await release.wait()
        await connection.execute("INSERT INTO shoes VALUES (9, 'kept')")

    left = asyncio.create_task(database.transaction(linger))
    await inside.wait()
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    first = asyncio.create_task(database.fetch("SELECT pg_backend_pid() FROM pg_sleep(0.01)"))
    second = asyncio.create_task(database.fetch("SELECT pg_backend_pid()"))
    assert (await first) == (await second)  # the other connection is still at work
    release.set()

    async def kept() -> bool:
        return await database.fetch("SELECT id FROM shoes") == [(9,)]

    await eventually(kept, 20.0, "the transaction of the caller who left")


async def test_a_caller_that_gives_up_its_place_in_the_queue_passes_it_on(database: Database) -> None:
    busy = [asyncio.create_task(database.fetch("SELECT pg_sleep(0.02)")) for _ in range(2)]
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(database.fetch("SELECT 1")) for _ in range(4)]
    await asyncio.sleep(0)
    for each in waiting[:3]:
        each.cancel()
    assert await waiting[3] == [(1,)]
    await asyncio.gather(*busy, *waiting, return_exceptions=True)
    both = [database.fetch("SELECT pg_backend_pid() FROM pg_sleep(0.02)") for _ in range(2)]
    assert len({str(rows) for rows in await asyncio.gather(*both)}) == 2, "no connection was lost"


async def test_more_than_may_wait_are_refused_at_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.chassis.postgres.database.WAITING_MAX", 1)
    calls = [asyncio.create_task(database.fetch("SELECT pg_sleep(0.01)")) for _ in range(4)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(answer, DatabaseAway) for answer in answers) == 1


async def test_the_probe_asks_the_database_itself(database: Database) -> None:
    busy = [asyncio.create_task(database.fetch("SELECT pg_sleep(0.05)")) for _ in range(2)]
    assert await database.probe() is True
    await asyncio.gather(*busy)
    nowhere = Database("postgresql://nobody@127.0.0.1:1/nowhere", name="nobody")
    assert await nowhere.probe() is False
    with pytest.raises(DatabaseAway):
        await nowhere.fetch("SELECT 1")
    await nowhere.close()


async def test_composed_statements_run_on_the_same_connections(database: Database) -> None:
    for number, name in ((1, "clog"), (2, "boot"), (3, None)):
        await database.fetch(*compiled(insert(SHOES).values(id=number, name=name)))
    statement = (
        select(SHOES.c.id, SHOES.c.name)
        .where(and_(SHOES.c.id.in_([1, 2, 3]), SHOES.c.name != "boot"))
        .order_by(SHOES.c.id.desc())
        .limit(5)
    )
    assert await database.fetch(*compiled(statement)) == [(1, "clog")]
    assert await database.fetch(*compiled(select(func.count()).where(SHOES.c.id.in_([])))) == [(0,)]
    escaped = select(SHOES.c.id).where(SHOES.c.name.like("%oo%"))
    assert await database.fetch(*compiled(escaped)) == [(2,)]


async def test_statement_is_composed_once_and_run_with_other_values(database: Database) -> None:
    add = Composed(insert(SHOES).values(id=bindparam("number"), name=bindparam("called")))
    await database.execute(*add(number=11, called="mule"))
    await database.execute(*add(number=12, called=None))
    rename = Composed(
        update(SHOES).where(SHOES.c.id == bindparam("number")).values(name="sandal").returning(SHOES.c.name)
    )
    assert await database.fetch(*rename(number=12)) == [("sandal",)]
    find = Composed(select(SHOES.c.name).where(SHOES.c.id > bindparam("above")).order_by(SHOES.c.id))
    assert await database.fetch(*find(above=10)) == [("mule",), ("sandal",)]


def test_values_of_composed_statements_are_always_parameters() -> None:
    sql, params = compiled(select(SHOES.c.id).where(SHOES.c.name == "'; DROP TABLE shoes"))
    assert "DROP" not in sql
    assert list(params.values()) == ["'; DROP TABLE shoes"]
