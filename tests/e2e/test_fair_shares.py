"""One workspace with much work cannot keep another from its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.api import Client, new_workspace
from tests.support.probe import eventually
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import resources_pb2

SUCCESS, RUNNING = resources_pb2.Execution.SUCCESS, resources_pb2.Run.RUNNING
# Places of the runner. A fifth of them is the reserve.
PLACES, FLOOD_MAX = 10, 8
# Takes more CPU time than a child may use.
SLOW = "{% set l = input.long %}" + "{% set q = (l ~ l ~ l ~ l)|list|length %}" * 300


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack() -> AsyncIterator[Stack]:
    async with running_stack() as made:
        yield made


async def test_delays_of_one_workspace_leave_places_for_others(stack: Stack) -> None:
    flood, quiet = await new_workspace(stack, "flood", executions_max=1), Client(stack)
    nodes = [{"id": f"n{number}", "module": "delay@1", "config": {"duration": "1h"}} for number in range(40)]
    await flood.apply("flood", nodes)
    await quiet.apply("quiet", [{"id": "a", "module": "noop@1"}, {"id": "b", "module": "noop@1"}])
    execution = await flood.start("flood")

    async def holds_its_share() -> bool:
        runs = await flood.runs_of(execution.id)
        # A run may have been lost with a lease, and another granted for it.
        assert sum(not run.HasField("end_time") for run in runs) <= FLOOD_MAX
        return sum(run.state == RUNNING for run in runs) == FLOOD_MAX

    await eventually(holds_its_share, 20, "the flood to begin")
    for _ in range(3):
        assert (await quiet.run("quiet")).state == SUCCESS
    await flood.cancel(execution.id)
    await flood.end_of(execution.id)


async def test_nodes_with_slow_templates_hold_up_no_other_workspace(stack: Stack) -> None:
    flood, quiet = await new_workspace(stack, "slow", executions_max=1), Client(stack)
    slow = [{"id": f"n{number}", "module": "transform@1", "inputs": {"a": SLOW}} for number in range(60)]
    await flood.apply("slow", slow)
    await quiet.apply("quick", [{"id": "a", "module": "transform@1", "inputs": {"a": "{{ input.n * 2 }}"}}])
    execution = await flood.start("slow", input={"long": "a" * 200_000})

    async def has_begun() -> bool:
        return any(run.state == resources_pb2.Run.FAILED for run in await flood.runs_of(execution.id))

    await eventually(has_begun, 30, "the first of the slow templates to end")
    for number in range(3):
        assert (await quiet.run("quick", input={"n": number})).output == {"a": {"a": number * 2}}
    assert (await flood.get(execution.id)).state == resources_pb2.Execution.RUNNING
    await flood.cancel(execution.id)
    await flood.end_of(execution.id)
    attempts = Counter(run.node for run in await flood.runs_of(execution.id))
    assert max(attempts.values()) <= 8, "work that waits for a child is granted again and again"
