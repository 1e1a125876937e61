"""What nodes do, from a definition to what their execution says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.api import Client
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import resources_pb2

SUCCESS = resources_pb2.Execution.SUCCESS


MODULES = Path(__file__).with_name("node_modules.py")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack() -> AsyncIterator[Stack]:
    async with running_stack(coordinators=2, modules=[MODULES]) as made:
        yield made


@pytest.fixture
def client(stack: Stack) -> Client:
    return Client(stack)


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


async def test_what_a_module_logs_is_in_the_log_of_its_runner_with_its_run(
    stack: Stack, client: Client
) -> None:
    await client.apply("say", [{"id": "sheep", "module": "test.says@1", "inputs": {"flock": "north"}}])
    execution = await client.run("say")
    assert execution.state == SUCCESS, execution.error
    lines = [json.loads(line) for line in stack.log("runner").splitlines() if "counted 7 sheep" in line]
    (run,) = await client.runs_of(execution.id)
    told = [
        (each["execution_id"], each["run_id"], each["node"], each["attempt"], each["flock"]) for each in lines
    ]
    assert told == [(execution.id, run.id, "sheep", 1, "north")]
