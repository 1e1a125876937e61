"""Writes copies of exported executions, each in one transaction, and reads what is kept of them beside their rows.

Two imports with the same request id wait for each other, and the second one finds the first.

Hazard: a large copy is written for many seconds. Copies are written one after the other, on a connection of their own,
so that nothing else waits for them.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

import orjson
import psycopg

from services.chassis.postgres.connection import Connection, is_of_values
from services.chassis.postgres.database import Database, PgConnection
from services.coordinator.app.importing import ImportedCopy, ImportOrder, ImportsFull
from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.definition import Definition
from services.coordinator.core.replaying import NotReplayable
from services.coordinator.store.append import COLUMNS, insertion
from services.coordinator.store.columns import parameters

# A copy of 100,000 events is written in some ten seconds.
_SECONDS: Final = 120.0
_ROWS_PER_INSERT: Final = 500
# A row of the journal has some 64 KiB at most, unless its only event is larger.
_RECORDS_PER_INSERT: Final = 64
_LOCK_REQUEST: Final = "SELECT pg_advisory_xact_lock(hashtextextended('coordinator.imports ' || %s || ' ' || %s, 0))"
# The newest: the months of older ones may have been dropped.
_EARLIER: Final = """
SELECT execution_id::text, import_digest FROM executions
WHERE workspace = %s AND import_request_id = %s AND imported_execution_id <> '' ORDER BY execution_id DESC LIMIT 1
"""
# Two copies of a workspace that end at the same time count one after the other.
_LOCK_SIZE: Final = "SELECT pg_advisory_xact_lock(hashtextextended('coordinator.imported_bytes ' || %s, 0))"
_SIZE: Final = """
SELECT coalesce(sum(imported_bytes), 0)::int8 FROM executions WHERE workspace = %s AND imported_execution_id <> ''
"""
_MARK: Final = """
UPDATE executions SET imported_execution_id = %s, import_request_id = nullif(%s, ''), import_digest = %s,
  imported_definition = %s, imported_references = %s, imported_bytes = %s
WHERE execution_id = %s::uuid
"""
_DEFINITION: Final = """
SELECT imported_definition, imported_references FROM executions
WHERE execution_id = %s::uuid AND imported_execution_id <> ''
"""


class PostgresImports:
    def __init__(self, database: Database, writer: PgConnection) -> None:
        self._database = database
        self._writer = writer

    async def earlier(self, workspace: str, request_id: str) -> tuple[str, bytes] | None:
        row = await self._database.fetch_one(_EARLIER, (workspace, request_id))
        return None if row is None else (row[0], row[1])

    async def kept_bytes(self, workspace: str) -> int:
        row = await self._database.fetch_one(_SIZE, (workspace,))
        return 0 if row is None else int(row[0])

    async def definition(self, execution_id: str) -> Definition | None:
        row = await self._database.fetch_one(_DEFINITION, (execution_id,))
        return None if row is None else compile_definition(orjson.loads(row[0]), orjson.loads(row[1]))

    async def add(
        self,
        order: ImportOrder,
        digest: bytes,
        copy: ImportedCopy,
        *,
        size_bytes: int,
        kept_bytes_max: int,
        name_outputs: Callable[[], Awaitable[None]],
    ) -> bool:
        async def work(connection: Connection) -> bool:
            async with connection.transaction():
                if not await _written(connection, order, copy):
                    return False
                await _keep_within(connection, order.workspace, kept_bytes_max - size_bytes)
                kept = (order.imported_execution_id, order.request_id, digest, order.definition, order.references)
                await connection.execute(_MARK, (*kept, size_bytes, order.execution_id))
                await name_outputs()
                return True

        try:
            return await self._writer.run(work, seconds=_SECONDS)
        except (psycopg.Error, struct.error, OverflowError) as failure:
            if isinstance(failure, psycopg.Error) and not is_of_values(failure):
                raise
            raise NotReplayable(f"a value cannot be stored: {failure}") from None


async def _keep_within(connection: Connection, workspace: str, bytes_max: int) -> None:
    await connection.execute(_LOCK_SIZE, (workspace,))
    row = await (await connection.execute(_SIZE, (workspace,), binary=True)).fetchone()
    if row is not None and row[0] > bytes_max:
        raise ImportsFull


async def _written(connection: Connection, order: ImportOrder, copy: ImportedCopy) -> bool:
    if order.request_id:
        await connection.execute(_LOCK_REQUEST, (order.workspace, order.request_id))
        cursor = await connection.execute(_EARLIER, (order.workspace, order.request_id), binary=True)
        if await cursor.fetchone() is not None:
            return False
    journal = [(order.execution_id, *record) for record in copy.journal]
    for table, part, rows, count in (
        ("executions", "fresh", [copy.execution], 1),
        ("journal", "journal", journal, _RECORDS_PER_INSERT),
        ("runs", "made", copy.runs, _ROWS_PER_INSERT),
        ("approvals", "approvals", copy.approvals, _ROWS_PER_INSERT),
    ):
        for some in _pages(rows, count):
            await connection.execute(insertion(table, part), parameters(COLUMNS[part], some))
    return True


def _pages(rows: Sequence[tuple[Any, ...]], count: int) -> Iterator[Sequence[tuple[Any, ...]]]:
    for first in range(0, len(rows), count):
        yield rows[first : first + count]
