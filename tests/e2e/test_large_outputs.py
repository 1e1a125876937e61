"""Outputs of any size reach users, and a runner that shares no disk works like any other."""

from __future__ import annotations

import pytest

from tests.support.api import Client, output_of
from tests.support.stack import running_stack
from windlass.api.v1 import resources_pb2

SUCCESS = resources_pb2.Execution.SUCCESS
LARGE, SMALL = {"t": "x" * 750_000}, {"length": 750_000}


@pytest.mark.parametrize("extra_env", [[], ["runner:WINDLASS_OUTPUT_STORE="]], ids=["shared disk", "no shared disk"])
async def test_large_outputs_reach_later_nodes_and_users(extra_env: list[str]) -> None:
    nodes = [
        {"id": "large", "module": "transform@1", "inputs": {"t": "{{ input.t ~ input.t ~ input.t }}"}},
        {"id": "small", "module": "transform@1", "inputs": {"length": "{{ nodes.large.output.t|length }}"}},
    ]
    async with running_stack(coordinators=2, extra_env=extra_env) as stack:
        client = Client(stack)
        await client.apply("sizes", nodes, edges=[{"from": "large", "to": "small"}])
        execution = await client.run("sizes", input={"t": "x" * 250_000})
        assert execution.state == SUCCESS, execution.error
        outputs = {run.node: await output_of(client, run.id) for run in await client.runs_of(execution.id)}
        assert outputs == {"large": LARGE, "small": SMALL}
