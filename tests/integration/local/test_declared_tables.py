"""The tables that statements are composed from are those that the migrations make."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import MetaData
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateSchema, CreateTable

from services.api.store import tables as api
from services.coordinator.store import tables as coordinator
from services.dispatcher.store import tables as dispatcher
from tests.support.postgres import Database, PostgresCluster

SERVICES = {"api": api.metadata, "dispatcher": dispatcher.metadata, "coordinator": coordinator.metadata}
# Partitions are made as time goes by, and are tables like those that they belong to.
TABLES = """
SELECT c.relname, pg_get_partkeydef(c.oid) FROM pg_class c
WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND c.relname <> 'schema_version'
"""
COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull FROM pg_attribute a
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
"""
CONSTRAINTS = """
SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = %s::regclass AND contype IN ('p', 'u', 'f')
"""
INDEXES = """
SELECT c.relname, pg_get_indexdef(i.indexrelid)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = %s::regclass
"""


@pytest_asyncio.fixture
async def migrated(postgres: PostgresCluster) -> AsyncIterator[Database]:
    database = await postgres.database(migrated=True)
    yield database
    await postgres.drop(database)


@pytest_asyncio.fixture
async def empty(postgres: PostgresCluster) -> AsyncIterator[Database]:
    database = await postgres.database()
    yield database
    await postgres.drop(database)


async def tables(url: str, schema: str) -> dict[str, Any]:
    """The definition of each table of the schema."""
    found: dict[str, Any] = {}
    async with await psycopg.AsyncConnection.connect(url) as connection:
        for name, partitioned_by in await (await connection.execute(TABLES, (schema,))).fetchall():
            parts = [
                sorted(await (await connection.execute(query, (f"{schema}.{name}",))).fetchall())
                for query in (COLUMNS, CONSTRAINTS, INDEXES)
            ]
            found[name] = (partitioned_by, *parts)
    return found


async def make(url: str, metadata: MetaData) -> None:
    dialect = postgresql.dialect()
    async with await psycopg.AsyncConnection.connect(url) as connection:
        made: list[Any] = [CreateSchema(str(metadata.schema), if_not_exists=True)]
        for table in metadata.sorted_tables:
            made += [CreateTable(table), *map(CreateIndex, table.indexes)]
        for each in made:
            await connection.execute(str(each.compile(dialect=dialect)).encode())


@pytest.mark.parametrize("service", SERVICES)
async def test_declared_tables_are_the_migrated_ones(migrated: Database, empty: Database, service: str) -> None:
    await make(empty.superuser_url, SERVICES[service])
    declared = await tables(empty.superuser_url, service)
    found = await tables(migrated.superuser_url, service)
    assert declared.keys() == found.keys()
    for name in found:
        assert declared[name] == found[name], name
