"""Copies are written on a connection of their own."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.postgres.database import Database, PgConnection
from services.coordinator.app.importing import ImportOrder, ImportsFull, copied
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


def copy(order: ImportOrder = ORDER) -> Any:
    story = Story([node("a")])
    story.start()
    return done(copied(order, story.definition, story.stored, codec))


async def nothing_to_name() -> None: ...


async def add_to(imports: PostgresImports, order: ImportOrder, *, size_bytes: int, name_outputs: Any = None) -> bool:
    naming = name_outputs or nothing_to_name
    return await imports.add(
        order, b"digest", copy(order), size_bytes=size_bytes, kept_bytes_max=10, name_outputs=naming
    )


async def test_a_copy_whose_outputs_get_no_names_is_not_kept(database: postgres.Database) -> None:
    url = database.url("coordinator")
    reads, writer = Database(url, name="reads", connections=1), PgConnection(url, name="imports")
    imports, order = PostgresImports(reads, writer), ORDER._replace(execution_id=id_of(NOW, 99), workspace="unnamed")

    async def name_outputs() -> None:
        raise DependencyUnavailable("the output store")

    try:
        with pytest.raises(DependencyUnavailable):
            await add_to(imports, order, size_bytes=1, name_outputs=name_outputs)
        assert await imports.earlier("unnamed", "same") is None
        assert await add_to(imports, order, size_bytes=1)
    finally:
        await reads.close()
        await writer.close()


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
        adding = [asyncio.create_task(add_to(imports, ORDER, size_bytes=1)) for _ in range(4)]

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


async def test_the_copies_of_a_workspace_have_a_size_together(database: postgres.Database) -> None:
    url = database.url("coordinator")
    reads, writer = Database(url, name="reads", connections=1), PgConnection(url, name="imports")
    imports, numbers, named = PostgresImports(reads, writer), itertools.count(1), list[bool]()

    async def name_outputs() -> None:
        named.append(True)

    async def add(workspace: str, request_id: str, size_bytes: int) -> bool:
        order = ORDER._replace(execution_id=id_of(NOW, next(numbers)), workspace=workspace, request_id=request_id)
        named.clear()
        return await add_to(imports, order, size_bytes=size_bytes, name_outputs=name_outputs)

    try:
        assert await add("full", "one", 6)
        with pytest.raises(ImportsFull):
            await add("full", "two", 5)
        assert (await imports.earlier("full", "two"), named) == (None, []), "nothing of it is kept"
        assert await add("full", "two", 4)
        assert await imports.kept_bytes("full") == 10
        assert named
        assert not await add("full", "one", 6), "a repeat is answered with the copy that is there"
        assert not named
        assert await add("another", "one", 10)
        assert await imports.kept_bytes("another") == 10
    finally:
        await reads.close()
        await writer.close()
