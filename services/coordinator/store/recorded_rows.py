"""Reads the rows of one execution as they were recorded (core/recorded_rows.py). PostgreSQL hashes the payloads, so
that no page of rows is large.

The statements are raw SQL, because those of a page are the same for each table but for its name (reads.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final

from services.chassis.postgres.arrays import Bytes
from services.chassis.postgres.database import Database
from services.coordinator.core.recorded_rows import TABLE_COLUMNS, RowName, columns_of
from services.coordinator.store.columns import kind_of, selected

_PAGE: Final = 500
_NUMBERED: Final = tuple(table for table in TABLE_COLUMNS if table != "executions")


def _hashed(columns: Iterable[str]) -> str:
    return ", ".join(
        f"'sha256:' || encode(sha256(t.{column}), 'hex')" if kind_of(column) is Bytes else selected("t", [column])
        for column in columns
    )


_EXECUTION: Final = f"SELECT {_hashed(TABLE_COLUMNS['executions'])} FROM executions t WHERE t.execution_id = %s"
_PAGES: Final[Mapping[str, str]] = {
    table: f"""
SELECT {_hashed(TABLE_COLUMNS[table])} FROM {table} t
WHERE t.execution_id = %s AND t.number > %s ORDER BY t.number LIMIT {_PAGE}
"""
    for table in _NUMBERED
}


async def recorded_rows(database: Database, execution_id: str) -> AsyncIterator[tuple[RowName, Mapping[str, Any]]]:
    for row in await database.fetch(_EXECUTION, (execution_id,)):
        yield ("executions", 0), columns_of("executions", row)
    for table in _NUMBERED:
        number = 0
        while rows := await database.fetch(_PAGES[table], (execution_id, number)):
            for row in rows:
                columns = columns_of(table, row)
                number = columns["number"]
                yield (table, number), columns
            if len(rows) < _PAGE:
                break
