"""Migrations are numbered, forward only and applied once. A program refuses tables that it does not know."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio

from services.chassis.postgres.connection import PgConnection
from services.chassis.postgres.migrations import SchemaMismatch, apply, check, migrations_in
from tests.support.postgres import PostgresCluster


@pytest_asyncio.fixture(loop_scope="session")
async def url(postgres: PostgresCluster) -> AsyncIterator[str]:
    database = await postgres.database()
    yield database.superuser_url
    await postgres.drop(database)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "0001_initial.sql").write_text(
        "CREATE TABLE shoes (id int); INSERT INTO shoes VALUES (1);\n-- 100 % wool\n"
    )
    (tmp_path / "0002_names.sql").write_text("ALTER TABLE shoes ADD COLUMN name text DEFAULT 'clog';\n")
    return tmp_path


async def rows(url: str, sql: str) -> list[tuple[object, ...]]:
    connection = PgConnection(url, name="reader")
    found = await connection.fetch(sql)
    await connection.close()
    return found


async def test_missing_migrations_are_applied_in_order_and_once(url: str, directory: Path) -> None:
    assert await apply(url, "shop", directory) == ["0001_initial.sql", "0002_names.sql"]
    assert await apply(url, "shop", directory) == []
    await check(url, "shop", directory)
    assert await rows(url, "SELECT id, name FROM shop.shoes") == [(1, "clog")]
    assert await rows(url, "SELECT version FROM shop.schema_version ORDER BY 1") == [(1,), (2,)]


async def test_two_at_once_are_one_after_the_other(url: str, directory: Path) -> None:
    applied = await asyncio.gather(*(apply(url, "shop", directory) for _ in range(4)))
    assert sorted(len(names) for names in applied) == [0, 0, 0, 2]


async def test_a_file_that_fails_leaves_nothing_of_itself(url: str, directory: Path) -> None:
    (directory / "0002_names.sql").write_text("CREATE TABLE half (id int); SELECT 1 / 0;")
    with pytest.raises(psycopg.errors.DivisionByZero):
        await apply(url, "shop", directory)
    assert await rows(url, "SELECT to_regclass('shop.half')") == [(None,)]
    assert await rows(url, "SELECT version FROM shop.schema_version") == [(1,)]
    with pytest.raises(SchemaMismatch, match="lacks 0002_names"):
        await check(url, "shop", directory)


async def test_a_program_refuses_tables_that_are_behind_ahead_or_other(url: str, directory: Path) -> None:
    with pytest.raises(SchemaMismatch, match="lacks 0001_initial"):
        await check(url, "shop", directory)
    await apply(url, "shop", directory)
    second = directory / "0002_names.sql"
    text = second.read_text()
    second.write_text(text + "-- edited later\n")
    for refuse in (check, apply):
        with pytest.raises(SchemaMismatch, match="is not what was applied"):
            await refuse(url, "shop", directory)
    second.unlink()
    for refuse in (check, apply):
        with pytest.raises(SchemaMismatch, match="at version 2, this program knows 1"):
            await refuse(url, "shop", directory)


async def test_a_schema_belongs_to_the_role_that_made_it(url: str, directory: Path) -> None:
    await apply(url, 'odd "name"', directory)
    await check(url, 'odd "name"', directory)


@pytest.mark.parametrize("names", [[], ["0002_a.sql"], ["0001_a.sql", "0003_b.sql"], ["1_a.sql"]])
def test_files_that_are_not_numbered_without_a_gap_are_refused(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("SELECT 1")
    with pytest.raises(ValueError, match=r"numbered|not named like"):
        migrations_in(tmp_path)
