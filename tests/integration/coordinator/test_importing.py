"""Copies are written on a connection of their own."""

from __future__ import annotations

import asyncio
from typing import Any

from services.chassis.postgres.database import Database, PgConnection
from services.coordinator.app.importing import ImportOrder, copied
from services.coordinator.store import codec
from services.coordinator.store.imports import PostgresImports
from tests.integration.coordinator.test_history import NOW, id_of
from tests.support import postgres
from tests.support.probe import eventually
from tests.support.steps import done
from tests.support.story import EXECUTION_ID, Story, node

ORDER = ImportOrder(id_of(NOW), EXECUTION_ID, "w", "same", b"{}", b"{}")
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('coordinator.imports w same', 0))"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'imports' AND wait_event_type = 'Lock'"


def copy() -> Any:
    story = Story([node("a")])
    story.start()
    return done(copied(ORDER, story.definition, story.stored, codec))


async def test_reads_go_on_while_copies_are_written(database: postgres.Database) -> None:
    """Each pool has one connection here, and the first copy waits for a lock."""
    url = database.url("coordinator")
    reads, writer, other = (
        Database(url, name="reads", connections=1),
        PgConnection(url, name="imports"),
        PgConnection(url, name="other"),
    )
    imports, may_end, is_locked = PostgresImports(reads, writer), asyncio.Event(), asyncio.Event()

    async def hold(connection: Any) -> None:
        async with connection.transaction():
            await connection.execute(LOCK)
            is_locked.set()
            await may_end.wait()

    try:
        holding = asyncio.create_task(other.run(hold, seconds=60.0))
        await is_locked.wait()
        adding = [asyncio.create_task(imports.add(ORDER, b"digest", copy())) for _ in range(4)]

        async def waits() -> bool:
            return bool((await reads.fetch(WAITING))[0][0] == 1)

        await eventually(waits, 10, "the first copy to wait")
        assert await imports.earlier("w", "same") is None
        may_end.set()
        await holding
        assert sorted([await each for each in adding]) == [False, False, False, True]
        assert await imports.earlier("w", "same") == (ORDER.execution_id, b"digest")
    finally:
        may_end.set()
        for each in (reads, writer, other):
            await each.close()
