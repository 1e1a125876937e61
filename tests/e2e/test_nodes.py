"""What nodes do, from a definition to what their execution says."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.api import Client
from tests.support.stack import running_stack
from windlass.api.v1 import resources_pb2

SUCCESS = resources_pb2.Execution.SUCCESS


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client() -> AsyncIterator[Client]:
    async with running_stack() as stack:
        yield Client(stack)


@pytest.mark.parametrize("wait", ["10ms", 0.01])
async def test_a_sleep_whose_config_holds_templates_is_rendered_first(
    client: Client, wait: str | float
) -> None:
    nodes = [
        {"id": "wait", "module": "transform@1", "inputs": {"d": "{{ input.d }}"}},
        {"id": "rest", "module": "sleep@1", "config": {"duration": "{{ nodes.wait.output.d }}"}},
    ]
    await client.apply("nap", nodes, edges=[{"from": "wait", "to": "rest"}])
    execution = await client.run("nap", input={"d": wait})
    assert execution.state == SUCCESS, execution.error
    rest = next(run for run in await client.runs_of(execution.id) if run.node == "rest")
    assert rest.module == "sleep@1"
