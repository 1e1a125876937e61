"""`windlass diff` names what differs between two executions."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Any

from tests.support.api import Client
from tests.support.command_line import windlass
from tests.support.stack import Stack

NODES: list[dict[str, Any]] = [
    {"id": "double", "module": "transform@1", "inputs": {"x": "{{ input.n * 2 }}"}},
    {"id": "each", "module": "for_each@1", "config": {"items": "{{ input.list }}", "body": {"module": "noop@1"}}},
]


async def diff(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(windlass, "diff", *arguments, "--home", stack.options.home, COLUMNS="200")


async def test_executions_with_other_inputs_differ_where_the_input_matters(shared_stack: Stack) -> None:
    client = Client(shared_stack)
    await client.apply("compared", NODES)
    first = await client.run("compared", input={"n": 1, "list": [1]})
    second = await client.run("compared", input={"n": 2, "list": [1, 2]})
    shown = await diff(shared_stack, first.id, second.id, "--json")
    assert shown.returncode == 1, shown.stderr
    found = {(each["node"], each["what"]): (each["first"], each["second"]) for each in json.loads(shown.stdout)}
    assert found["double", "output"] == ('{"x": 2}', '{"x": 4}')
    assert found["each[2]", "runs"] == ("", "has one")
    assert ("each[1]", "state") not in found
    assert "double" in (await diff(shared_stack, first.id, second.id)).stdout


async def test_an_execution_is_compared_with_the_last_success_of_its_workflow(shared_stack: Stack) -> None:
    client = Client(shared_stack)
    await client.apply("compared-alone", NODES)
    first = await client.run("compared-alone", input={"n": 1, "list": []})
    alone = await diff(shared_stack, first.id)
    assert (alone.returncode, "no other execution" in alone.stderr) == (1, True)
    second = await client.run("compared-alone", input={"n": 1, "list": []})
    same = await diff(shared_stack, first.id)
    assert (same.returncode, same.stdout) == (0, f"Nothing differs between {first.id} and {second.id}.\n")
