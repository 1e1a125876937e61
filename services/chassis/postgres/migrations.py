"""Numbered SQL files, applied forward only. Each runs in one transaction with the row that records it.

The number of `0001_initial.sql` is the version. A file that was applied must never change, so its checksum is kept and
compared. A service only compares at its start (`check`). The migrate command applies files (`apply`), under an advisory
lock, so that two commands run one after the other.

Hazard: a statement that cannot run in a transaction (CREATE INDEX CONCURRENTLY) cannot stand in such a file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from psycopg import AsyncConnection, sql

from services.chassis.telemetry.logs import logger

log = logger(__name__)

_FILE_NAME: Final = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


class SchemaMismatch(Exception):
    """The schema is not at the version that this program needs."""


class Migration(NamedTuple):
    version: int
    name: str
    text: str
    checksum: str


def migrations_in(directory: Path) -> list[Migration]:
    """The migrations in their order. Their numbers start at 1 and have no gap."""
    found: list[Migration] = []
    for path in sorted(directory.glob("*.sql")):
        parts = _FILE_NAME.fullmatch(path.name)
        if parts is None:
            raise ValueError(f"{path} is not named like 0001_initial.sql")
        text = path.read_text(encoding="utf-8")
        checksum = hashlib.sha256(text.encode()).hexdigest()
        found.append(Migration(int(parts[1]), path.name, text, checksum))
    numbers = [migration.version for migration in found]
    if not found or numbers != list(range(1, len(found) + 1)):
        raise ValueError(f"{directory} holds migrations {numbers}, which must be numbered 1, 2, 3, …")
    return found


async def apply(url: str, schema: str, directory: Path) -> list[str]:
    """Bring `schema` to the newest version, and return the names of the applied files. It is created when absent."""
    wanted = migrations_in(directory)
    async with await AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("SELECT pg_advisory_lock(hashtextextended('migrations of ' || %s, 0))", (schema,))
        await _prepare(connection, schema)
        applied = await _applied(connection, schema)
        _compare(schema, wanted, applied)
        missing = wanted[len(applied) :]
        for migration in missing:
            await _apply_one(connection, schema, migration)
        return [migration.name for migration in missing]


async def check(url: str, schema: str, directory: Path) -> None:
    """Raise SchemaMismatch unless `schema` is at exactly the version of these files."""
    wanted = migrations_in(directory)
    async with await AsyncConnection.connect(url, autocommit=True) as connection:
        applied = await _applied(connection, schema)
    _compare(schema, wanted, applied)
    if len(applied) < len(wanted):
        behind = wanted[len(applied)].name
        raise SchemaMismatch(f"schema {schema} lacks {behind}: run the migrate command first")


async def _prepare(connection: AsyncConnection, schema: str) -> None:
    name = sql.Identifier(schema)
    # IF NOT EXISTS would need the right to create schemas, also when it exists.
    cursor = await connection.execute("SELECT to_regnamespace(%s) IS NULL", (name.as_string(connection),))
    if await cursor.fetchone() == (True,):
        await connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
    await connection.execute(
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {} ("
            " version integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL,"
            " applied_time timestamptz NOT NULL DEFAULT now())"
        ).format(_record(schema))
    )


async def _applied(connection: AsyncConnection, schema: str) -> list[tuple[int, str]]:
    """Version and checksum of each applied file, in order. Empty when the schema does not exist."""
    table = _record(schema)
    cursor = await connection.execute("SELECT to_regclass(%s) IS NULL", (table.as_string(connection),))
    if await cursor.fetchone() == (True,):
        return []
    query = sql.SQL("SELECT version, checksum FROM {} ORDER BY version").format(table)
    return await (await connection.execute(query)).fetchall()


def _compare(schema: str, wanted: Sequence[Migration], applied: Sequence[tuple[int, str]]) -> None:
    if len(applied) > len(wanted):
        raise SchemaMismatch(
            f"schema {schema} is at version {applied[-1][0]}, this program knows {len(wanted)}; use a newer program"
        )
    for migration, (version, checksum) in zip(wanted, applied, strict=False):
        if version != migration.version or checksum != migration.checksum:
            raise SchemaMismatch(f"schema {schema}: {migration.name} is not what was applied; restore the file")


async def _apply_one(connection: AsyncConnection, schema: str, migration: Migration) -> None:
    async with connection.transaction():
        # Unqualified names in the file then mean this schema and no other.
        await connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(sql.Identifier(schema)))
        await connection.execute(migration.text.encode())  # bytes: no placeholders to look for
        await connection.execute(
            sql.SQL("INSERT INTO {} (version, name, checksum) VALUES (%s, %s, %s)").format(_record(schema)),
            (migration.version, migration.name, migration.checksum),
        )
    log.info("applied a migration", schema=schema, migration=migration.name)


def _record(schema: str) -> sql.Identifier:
    """The table of what was applied."""
    return sql.Identifier(schema, "schema_version")
