"""A connection stays usable while its server is hurt on purpose."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import psycopg
import pytest
import pytest_asyncio

from services.chassis.postgres.arrays import BigInts, Bools, Bytes, Floats, Ints, Texts, Times
from services.chassis.postgres.connection import CommitUnknown, Connection, DatabaseAway, PgConnection
from tests.support.postgres import PostgresCluster


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def url(postgres: PostgresCluster) -> AsyncIterator[str]:
    database = await postgres.database()
    async with await psycopg.AsyncConnection.connect(database.superuser_url, autocommit=True) as setup:
        await setup.execute("CREATE TABLE shoes (id int PRIMARY KEY, name text)")
    yield database.superuser_url
    await postgres.drop(database)


@pytest_asyncio.fixture(loop_scope="session")
async def connection(url: str) -> AsyncIterator[PgConnection]:
    opened = PgConnection(url, name="test-connection")
    await opened.execute("TRUNCATE shoes")
    yield opened
    await opened.close()


@pytest_asyncio.fixture(loop_scope="session")
async def other(url: str) -> AsyncIterator[PgConnection]:
    """Watches backends, and ends them."""
    opened = PgConnection(url, name="other")
    yield opened
    await opened.close()


async def backend_of(connection: PgConnection) -> int:
    pid: int = (await connection.fetch("SELECT pg_backend_pid()"))[0][0]
    return pid


async def wait_until(connection: PgConnection, sql: str) -> None:
    """Ask over another connection until the answer is true."""
    while not (await connection.fetch(sql))[0][0]:  # noqa: ASYNC110 - only the server knows
        await asyncio.sleep(0)


async def test_statements_are_autocommitted_and_prepared_at_their_first_use(connection: PgConnection) -> None:
    assert await connection.execute("INSERT INTO shoes VALUES (%s, %s)", (1, "clog")) == 1
    assert await connection.fetch("SELECT name FROM shoes WHERE id = %(id)s", {"id": 1}) == [("clog",)]
    assert await connection.fetch("DELETE FROM shoes") == []
    prepared = await connection.fetch("SELECT count(*) FROM pg_prepared_statements WHERE NOT from_sql")
    assert prepared[0][0] >= 3


async def test_a_pipeline_is_one_transaction(connection: PgConnection) -> None:
    inserted, counted, _ = await connection.pipeline(
        [
            ("INSERT INTO shoes VALUES (%s, 'a'), (2, 'b') RETURNING id", (1,)),
            ("SELECT count(*) FROM shoes", ()),
            ("UPDATE shoes SET name = 'c'", ()),
        ]
    )
    assert (inserted, counted) == ([(1,), (2,)], [(2,)])
    with pytest.raises(psycopg.errors.UniqueViolation):
        await connection.pipeline(
            [
                ("INSERT INTO shoes VALUES (3, 'd')", ()),
                ("INSERT INTO shoes VALUES (1, 'again')", ()),
                ("INSERT INTO shoes VALUES (4, 'e')", ()),
            ]
        )
    assert await connection.fetch("SELECT id, name FROM shoes ORDER BY id") == [(1, "c"), (2, "c")]


async def test_each_statement_of_a_pipeline_sees_what_was_committed_before_it(
    connection: PgConnection, other: PgConnection, url: str
) -> None:
    """A count after a lock must include what the former holder of the lock committed."""
    await connection.execute("INSERT INTO shoes VALUES (1, 'lock')")
    holder = PgConnection(url, name="holder")

    async def hold(connection: Connection) -> None:
        await connection.execute("SELECT 1 FROM shoes WHERE id = 1 FOR UPDATE")
        held.set()
        await connection.execute("INSERT INTO shoes VALUES (2, 'late')")
        await wait_until(
            other,
            "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE application_name = 'test-connection'"
            " AND wait_event_type = 'Lock')",
        )

    held = asyncio.Event()
    holding = asyncio.create_task(holder.transaction(hold))
    await held.wait()
    _, counted = await connection.pipeline(
        [("SELECT 1 FROM shoes WHERE id = 1 FOR UPDATE", ()), ("SELECT count(*) FROM shoes", ())]
    )
    await holding
    assert counted == [(2,)]
    await holder.close()


PUT = b"INSERT INTO shoes SELECT * FROM unnest($1, $2) RETURNING id"
COUNT = b"SELECT count(*), $1::int8 FROM shoes"


async def test_a_raw_pipeline_is_one_transaction_and_gives_the_rows_of_each_statement(connection: PgConnection) -> None:
    for number in range(3):
        put, counted = await connection.run_pipeline(
            [(PUT, (Ints([number]), Texts(["clog"]))), (COUNT, (2**40 + number,))]
        )
        assert (put, counted) == ([(number,)], [(number + 1, 2**40 + number)])
    names = await connection.fetch("SELECT statement FROM pg_prepared_statements WHERE name LIKE 'hot%%'")
    assert sorted(names) == [(PUT.decode(),), (COUNT.decode(),)], "each prepared once"

    with pytest.raises(psycopg.errors.UniqueViolation) as caught:
        await connection.run_pipeline(
            [
                (PUT, (Ints([7]), Texts(["boot"]))),
                (PUT, (Ints([0]), Texts(["again"]))),
                (PUT, (Ints([8]), Texts(["boot"]))),
            ]
        )
    assert caught.value.diag.constraint_name == "shoes_pkey"
    assert await connection.run_pipeline([(COUNT, (0,))]) == [[(3, 0)]]
    assert await connection.fetch("SELECT count(*) FROM shoes") == [(3,)]


async def test_a_statement_that_cannot_be_prepared_is_prepared_anew(connection: PgConnection) -> None:
    late = b"SELECT id FROM late_shoes"
    before = await backend_of(connection)
    for _ in range(2):
        with pytest.raises(psycopg.errors.UndefinedTable):
            await connection.run_pipeline([(PUT, (Ints([1]), Texts(["clog"]))), (late, ())])
    await connection.execute("CREATE TEMPORARY TABLE late_shoes (id int)")
    assert await connection.run_pipeline([(late, ())]) == [[]]
    assert await backend_of(connection) == before


async def test_a_raw_pipeline_whose_commit_fails_raises_the_error_of_the_commit(connection: PgConnection) -> None:
    await connection.execute("CREATE TEMPORARY TABLE worn (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    wear = b"INSERT INTO worn SELECT unnest($1::int4[])"
    before = await backend_of(connection)
    with pytest.raises(psycopg.errors.UniqueViolation):
        await connection.run_pipeline([(wear, (Ints([1, 1]),)), (COUNT, (0,))])
    assert await connection.run_pipeline([(wear, (Ints([1]),)), (b"SELECT count(*) FROM worn", ())]) == [[], [(1,)]]
    assert await backend_of(connection) == before


async def test_values_that_cannot_be_written_leave_the_connection_usable(connection: PgConnection) -> None:
    before = await backend_of(connection)
    for wrong in (Ints([2**40]), Texts(["\ud800"]), Texts([5])):
        with pytest.raises(psycopg.DataError):
            await connection.run_pipeline([(COUNT, (0,)), (PUT, (wrong, Texts(["clog"])))])
    assert await connection.fetch("SELECT 1") == [(1,)]
    assert await backend_of(connection) == before


async def test_a_raw_pipeline_may_be_larger_than_the_buffer_of_the_socket(connection: PgConnection) -> None:
    names = ["x" * 1024 * 1024] * 30
    (put,) = await connection.run_pipeline([(PUT, (Ints(list(range(30))), Texts(names)))])
    assert len(put) == 30
    (names_read,) = await connection.run_pipeline([(b"SELECT name FROM shoes WHERE id < $1", (30,))])
    assert names_read == [(name,) for name in names]


async def sleeping(connection: PgConnection, other: PgConnection) -> tuple[int, asyncio.Task[object]]:
    """The backend of the connection, and a raw pipeline that sleeps there."""
    pid = await backend_of(connection)
    asleep = asyncio.create_task(connection.run_pipeline([(b"SELECT pg_sleep(600), $1::int4", (1,))]))
    await wait_until(
        other, f"SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'PgSleep')"
    )
    return pid, asleep


async def test_a_raw_pipeline_without_an_answer_may_have_committed(
    connection: PgConnection, other: PgConnection
) -> None:
    pid, asleep = await sleeping(connection, other)
    await other.fetch("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    with pytest.raises(CommitUnknown):
        await asleep
    assert await connection.run_pipeline([(COUNT, (1,))]) == [[(0, 1)]]


async def test_a_raw_pipeline_that_is_cancelled_leaves_nothing_to_the_next(
    connection: PgConnection, other: PgConnection
) -> None:
    _, asleep = await sleeping(connection, other)
    asleep.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asleep
    assert await connection.run_pipeline([(COUNT, (5,))]) == [[(0, 5)]]


async def test_a_transaction_is_whole_or_nothing(connection: PgConnection) -> None:
    async def sell(connection: Connection) -> str:
        await connection.execute("INSERT INTO shoes VALUES (1, 'a')")
        return "sold"

    async def regret(connection: Connection) -> None:
        await connection.execute("INSERT INTO shoes VALUES (2, 'b')")
        raise RuntimeError("changed my mind")

    assert await connection.transaction(sell) == "sold"
    with pytest.raises(RuntimeError, match="changed my mind"):
        await connection.transaction(regret)
    assert await connection.fetch("SELECT id FROM shoes") == [(1,)]


async def test_a_faulty_statement_leaves_the_connection_clean(connection: PgConnection) -> None:
    before = await backend_of(connection)
    with pytest.raises(psycopg.errors.UndefinedTable):
        await connection.fetch("SELECT * FROM boots")
    assert await backend_of(connection) == before


async def test_a_deadline_that_passes_discards_the_connection(connection: PgConnection) -> None:
    before = await backend_of(connection)
    with pytest.raises(CommitUnknown):
        await connection.fetch("SELECT pg_sleep(600)", seconds=0.05)
    assert await backend_of(connection) != before


async def test_a_backend_that_is_stopped_is_noticed_by_the_deadline(connection: PgConnection) -> None:
    pid = await backend_of(connection)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(CommitUnknown):
            await connection.fetch("SELECT 1", seconds=0.05)
        assert await connection.fetch("SELECT 2") == [(2,)]
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_connection_that_died_while_idle_is_replaced_without_a_word(
    connection: PgConnection, other: PgConnection
) -> None:
    pid = await backend_of(connection)
    await other.fetch("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    assert await connection.fetch("SELECT 1") == [(1,)]


async def test_a_connection_that_dies_under_a_statement_leaves_the_commit_unknown(
    connection: PgConnection, other: PgConnection
) -> None:
    pid = await backend_of(connection)
    waiting = asyncio.create_task(connection.fetch("SELECT pg_sleep(600)"))
    await wait_until(other, f"SELECT strpos(query, 'pg_sleep') > 0 FROM pg_stat_activity WHERE pid = {pid}")
    await other.fetch("SELECT pg_terminate_backend(%s)", (pid,))
    with pytest.raises(CommitUnknown):
        await waiting
    assert await connection.fetch("SELECT 1") == [(1,)]


async def test_a_cancelled_awaiter_loses_no_commit_and_breaks_no_connection(
    connection: PgConnection, other: PgConnection
) -> None:
    before = await backend_of(connection)
    await other.fetch("SELECT pg_advisory_lock(1)")
    insert = "INSERT INTO shoes SELECT 1, 'late' FROM pg_advisory_xact_lock(1)"
    caller = asyncio.create_task(connection.execute(insert))
    await wait_until(other, f"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = {before}")
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    # The next call comes in its turn, after the statement that was left behind.
    after, _ = await asyncio.gather(backend_of(connection), other.fetch("SELECT pg_advisory_unlock(1)"))
    assert after == before
    assert await connection.fetch("SELECT name FROM shoes") == [("late",)]


async def test_random_cancellations_leave_the_connection_usable(connection: PgConnection) -> None:
    before = await backend_of(connection)
    for turns in range(60):
        caller = asyncio.create_task(connection.pipeline([("SELECT 1", ()), ("SELECT 2", ())]))
        for _ in range(turns % 13):
            await asyncio.sleep(0)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
    assert await backend_of(connection) == before


async def test_a_server_that_does_not_listen_is_away_at_once() -> None:
    connection = PgConnection("postgresql://nobody@127.0.0.1:1/nowhere", name="nobody")
    with pytest.raises(DatabaseAway) as caught:
        await connection.fetch("SELECT 1")
    assert not isinstance(caught.value, CommitUnknown)
    await connection.close()


async def test_too_many_connections_and_lost_races_are_away_not_bugs(connection: PgConnection) -> None:
    with pytest.raises(DatabaseAway) as caught:
        await connection.fetch("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
    assert not isinstance(caught.value, CommitUnknown)
    with pytest.raises(DatabaseAway):
        await connection.fetch("DO $$ BEGIN RAISE SQLSTATE '53300'; END $$")


async def test_the_server_ends_a_statement_whose_client_has_died(connection: PgConnection) -> None:
    assert await connection.fetch("SELECT current_setting('statement_timeout')") == [("10s",)]
    idle = await connection.fetch("SELECT current_setting('idle_in_transaction_session_timeout')")
    assert idle == [("10s",)]


async def test_arrays_keep_their_values(connection: PgConnection) -> None:
    now = datetime(2026, 11, 18, 12, 30, 0, 123456, tzinfo=UTC)
    before_epoch = datetime(1969, 7, 20, 20, 17, 40, 1, tzinfo=UTC)
    values = [
        Texts(["a", None, "é\n"]), Bytes([b"\x00\xff", None]), Ints([1, None, -(2**31)]),
        BigInts([2**63 - 1, None]), Floats([1.5, None]), Bools([True, False, None]),
        Times([now, None, before_epoch]), Texts([]),
    ]  # fmt: skip
    (row,) = await connection.fetch("SELECT " + ", ".join(["%s"] * len(values)), values)
    assert list(row) == [value.items for value in values]
    rows = await connection.fetch("SELECT * FROM unnest(%s::int8[], %s::text[])", (BigInts([1, 2]), Texts(["x", None])))
    assert rows == [(1, "x"), (2, None)]
