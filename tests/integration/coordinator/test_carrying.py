"""A real coordinator, a real journal: executions from their grant to their result."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.support.coordinator_stage import Stage, eventually, stage
from tests.support.postgres import Database


@pytest_asyncio.fixture(loop_scope="session")
async def on_stage(database: Database, tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(database.url("coordinator"), tmp_path) as made:
        yield made


LINE = {
    "name": "w",
    "nodes": [{"id": f"n{i}", "module": "noop@1", "config": {}} for i in range(5)],
    "edges": [{"from": f"n{i}", "to": f"n{i + 1}"} for i in range(4)],
}


async def test_a_line_of_steps_runs_to_its_result(on_stage: Stage) -> None:
    version = on_stage.catalog.add("v-line", **LINE)
    address, session = await on_stage.coordinator()
    runner = await on_stage.runner(address)
    orders = [on_stage.dispatcher.order(version) for _ in range(20)]
    on_stage.dispatcher.grant(session, orders)
    await eventually(lambda: len(on_stage.dispatcher.finished) == 20)
    assert len(runner.grants) == 100
    assert on_stage.catalog.asked == ["v-line"]
