"""Months of executions that have all ended long ago are dropped; every other row stays."""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from services.chassis.blobs import DirectoryBlobs
from services.chassis.postgres.database import Database, DatabaseAway
from services.chassis.process import retention
from services.coordinator.store.partitions import drop_old, kept_since
from tests.integration.coordinator.test_taking_over import STEP
from tests.support.coordinator_stage import Stage, eventually
from tests.support.postgres import PostgresCluster

DAY = 86_400.0
NOW = datetime.now(UTC)
TABLES = ("executions", "journal", "runs")


@pytest_asyncio.fixture(loop_scope="session")
async def own_tables(postgres: PostgresCluster) -> AsyncIterator[Database]:
    """Each test changes the partitions, so it has a database of its own."""
    made = await postgres.database(migrated=True)
    opened = Database(made.url("coordinator"), name="test", connections=2)
    yield opened
    await opened.close()
    await postgres.drop(made)


def id_of(time: datetime, number: int = 0) -> str:
    digits = f"{round(time.timestamp() * 1_000):012x}7{number:019x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


async def store(database: Database, created: datetime, end_time: datetime | None, number: int = 0) -> str:
    """Insert an execution with one event and one run, and the least that its rows need."""
    id_ = id_of(created, number)
    await database.execute(
        """
        INSERT INTO executions
        SELECT (jsonb_populate_record(NULL::executions, $${"epoch": 1, "last_seq": 1, "version": 1, "priority": 3,
            "trigger_type": 1, "runs": 1, "retries": 0, "cost_tokens": 0, "create_time": "now", "start_time": "now",
            "state": "", "workspace": "w", "workflow": "w", "version_id": "v", "holder": "h", "caller": "c",
            "request_id": "", "parent_execution_id": "", "origin_execution_id": "", "traceparent": "",
            "imported_execution_id": "", "labels": {}, "input": ""}$$::jsonb
            || jsonb_build_object('execution_id', %s::text, 'end_time', %s::timestamptz))).*
        """,
        (id_, end_time),
    )
    await database.execute("INSERT INTO journal VALUES (%s, 1, 1, 'x')", (id_,))
    await database.execute(
        "INSERT INTO runs (execution_id, number, iteration, generation, attempt, epoch, create_time, node, module,"
        " instance_id, runner, traceparent, effect_key) VALUES (%s, 1, 0, 0, 1, 1, now(), 'n', 'm', 'i', 'r', '', '')",
        (id_,),
    )
    return id_


async def stored(database: Database) -> dict[str, set[str]]:
    return {
        table: {row[0] for row in await database.fetch(f"SELECT DISTINCT execution_id::text FROM {table}")}
        for table in TABLES
    }


def everywhere(ids: set[str]) -> dict[str, set[str]]:
    return dict.fromkeys(TABLES, ids)


async def months(database: Database) -> set[str]:
    names = "'^(executions|journal|runs)_[0-9]{4}_[0-9]{2}$'"
    found = await database.fetch(f"SELECT relname FROM pg_class WHERE relname ~ {names}")
    return {name.partition("_")[2] for (name,) in found}


async def test_a_month_is_dropped_when_all_its_executions_have_ended_long_ago(own_tables: Database) -> None:
    created = [NOW - timedelta(days=days) for days in (400, 330, 260, 190)]
    names = [f"{each:%Y_%m}" for each in created]
    for each in created:
        await own_tables.fetch("SELECT make_partitions(%s::timestamptz)", (each,))
    before = await months(own_tables)
    long_ago = NOW - timedelta(days=100)
    await store(own_tables, created[0], long_ago)
    kept = {
        # These months have one that goes on, and one that has ended lately.
        await store(own_tables, created[1], long_ago),
        await store(own_tables, created[1], None, 1),
        await store(own_tables, created[2], NOW - timedelta(days=80)),
        await store(own_tables, NOW, long_ago),
    }
    await store(own_tables, created[3], long_ago)
    assert await drop_old(own_tables, 90 * DAY) == [names[0], names[3]]
    assert before - await months(own_tables) == {names[0], names[3]}
    assert await stored(own_tables) == everywhere(kept)
    since = await kept_since(own_tables)
    assert since == datetime(created[1].year, created[1].month, 1, tzinfo=UTC)
    assert await drop_old(own_tables, 90 * DAY) == []


async def test_the_outputs_of_a_dropped_month_stay_while_an_execution_of_an_earlier_one_goes_on(
    own_tables: Database, tmp_path: Path
) -> None:
    """It may be the parent of one that had such an output: a parent is never younger than its child."""
    of_parent, of_child = (NOW - timedelta(days=days) for days in (400, 330))
    for each in (of_parent, of_child):
        await own_tables.fetch("SELECT make_partitions(%s::timestamptz)", (each,))
    parent = await store(own_tables, of_parent, None)
    await store(own_tables, of_child, NOW - timedelta(days=320))
    blobs = DirectoryBlobs(tmp_path)
    output = await blobs.put(b'"large"', "w", f"{of_child:%Y-%m}")
    os.utime(tmp_path / output.key, (0, 0))

    async def deleted() -> int:
        since = await kept_since(own_tables)
        assert since is not None
        return await blobs.delete_before(since)

    assert await drop_old(own_tables, 90 * DAY) == [f"{of_child:%Y_%m}"]
    assert await deleted() == 0
    assert await blobs.get(output, "w") == b'"large"'
    await own_tables.execute(
        "UPDATE executions SET end_time = now() - interval '100 days' WHERE execution_id = %s", (parent,)
    )
    assert await drop_old(own_tables, 90 * DAY) == [f"{of_parent:%Y_%m}"]
    assert await deleted() == 1


async def test_an_execution_that_begins_while_its_month_is_looked_at_stops_the_drop(own_tables: Database) -> None:
    created = NOW - timedelta(days=400)
    await own_tables.fetch("SELECT make_partitions(%s::timestamptz)", (created,))
    late = await store(own_tables, created, None)
    assert await own_tables.fetch("SELECT drop_partitions(%s, 0)", (f"{created:%Y_%m}",)) == [(False,)]
    assert await stored(own_tables) == everywhere({late})


async def test_rows_without_a_partition_of_their_month_are_deleted_one_by_one(own_tables: Database) -> None:
    created = NOW - timedelta(days=400)
    for number in range(501):
        await store(own_tables, created, NOW - timedelta(days=100), number)
    going = await store(own_tables, created, None, 501)
    assert await drop_old(own_tables, 90 * DAY) == []
    assert await stored(own_tables) == everywhere({going})
    since = await kept_since(own_tables)
    assert since is not None
    assert abs(since - created) < timedelta(milliseconds=2)


async def test_an_imported_execution_is_as_old_as_its_import_whenever_it_ended(own_tables: Database) -> None:
    created = NOW - timedelta(days=400)
    await own_tables.fetch("SELECT make_partitions(%s::timestamptz)", (created,))
    await store(own_tables, created, None)
    without_partition = [NOW - timedelta(days=days) for days in (100, 80)]
    ended_long_ago = NOW - timedelta(days=1_000)
    await store(own_tables, without_partition[0], None)
    recent = await store(own_tables, without_partition[1], ended_long_ago)
    await own_tables.execute("UPDATE executions SET imported_execution_id = 'elsewhere'")
    assert await drop_old(own_tables, 90 * DAY) == [f"{created:%Y_%m}"]
    assert await stored(own_tables) == everywhere({recent})


async def test_a_month_that_is_in_use_keeps_nobody_waiting(own_tables: Database) -> None:
    created = NOW - timedelta(days=400)
    await own_tables.fetch("SELECT make_partitions(%s::timestamptz)", (created,))
    holds, may_end = asyncio.Event(), asyncio.Event()

    async def read_for_long(connection: object) -> None:
        async with connection.transaction():  # type: ignore[attr-defined]
            await connection.execute("SELECT count(*) FROM journal")  # type: ignore[attr-defined]
            holds.set()
            await may_end.wait()

    reading = asyncio.create_task(own_tables.run(read_for_long, seconds=20))
    await holds.wait()
    with pytest.raises(DatabaseAway, match="lock timeout"):
        await drop_old(own_tables, 90 * DAY)
    may_end.set()
    await reading
    assert await drop_old(own_tables, 90 * DAY) == [f"{created:%Y_%m}"]


async def test_a_coordinator_drops_old_months_with_their_outputs(on_stage: Stage, tables: Database) -> None:
    created = NOW - timedelta(days=800)
    await tables.fetch("SELECT make_partitions(%s::timestamptz)", (created,))
    blobs = DirectoryBlobs(on_stage.directory / "outputs")
    old, needed = [await blobs.put(b"{}", "default", f"{month:%Y-%m}") for month in (created, NOW)]
    for ref in (old, needed):
        os.utime(on_stage.directory / "outputs" / ref.key, (0, 0))
    session, _ = await on_stage.with_runner()
    await eventually(lambda: not (on_stage.directory / "outputs" / old.key).exists())
    assert f"{created:%Y_%m}" not in await months(tables)
    assert await blobs.get(needed, "default") == b"{}"
    order = on_stage.start(session, on_stage.catalog.add("v-step", **STEP))
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)


async def set_aside(database: Database, days: int) -> str:
    """Insert the dead letter of a run that failed for good so long ago."""
    id_ = id_of(NOW - timedelta(days=days))
    await database.execute(
        """
        INSERT INTO dead_letters
        SELECT (jsonb_populate_record(NULL::dead_letters, $${"number": 1, "version": 1, "iteration": 0,
            "generation": 1, "attempts": 1, "workspace": "w", "workflow": "w", "node": "n", "module": "m",
            "reason": "MAX_RETRIES", "resolution": "PENDING", "reviewer": "", "notes": ""}$$::jsonb
            || jsonb_build_object('execution_id', %s::text, 'quarantine_time', %s::timestamptz))).*
        """,
        (id_, NOW - timedelta(days=days)),
    )
    return id_


async def test_dead_letters_are_forgotten_after_the_time_that_is_set_for_them(
    on_stage: Stage, tables: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "EVERY_SECONDS", 0.05)
    old, young, new = [await set_aside(tables, days) for days in (31, 29, 9)]

    async def kept() -> set[str]:
        return {row[0] for row in await tables.fetch("SELECT execution_id::text FROM dead_letters")} & {old, young, new}

    async def is_left(ids: set[str]) -> bool:
        return await kept() == ids

    assert await kept() == {old, young, new}
    await on_stage.coordinator()
    await eventually(lambda: is_left({young, new}))
    await on_stage.coordinator("1", dead_letter_seconds=10 * DAY)
    await eventually(lambda: is_left({new}))
