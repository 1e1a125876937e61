"""Journals as the database has them."""

from typing import Any

from services.chassis.postgres.database import Database
from services.coordinator.store.codec import Stored, unseal


async def stored_events(tables: Database, execution_id: str) -> list[Stored]:
    rows: Any = await tables.fetch(
        "SELECT events FROM journal WHERE execution_id = %s ORDER BY last_seq", (execution_id,)
    )
    return [stored for (row,) in rows for stored in unseal(row)]
