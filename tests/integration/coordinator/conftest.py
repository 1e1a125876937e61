"""Each test has a stage of its own. The database is shared by the module; peers and coordinators are not."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from services.chassis.postgres.database import Database as Connections
from tests.support.coordinator_stage import Stage, stage
from tests.support.postgres import Database


@pytest_asyncio.fixture(loop_scope="session")
async def on_stage(database: Database, tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(database.url("coordinator"), tmp_path) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def tables(database: Database) -> AsyncIterator[Connections]:
    opened = Connections(database.url("coordinator"), name="test", connections=1)
    yield opened
    await opened.close()
