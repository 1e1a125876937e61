"""Loops from their definition to the result of their execution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.json_format import MessageToDict

from tests.support.api import Client, output_of
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import executions_pb2, resources_pb2

PAGE = Path(__file__).resolve().parents[2] / "docs" / "definitions.md"
SUCCESS, FAILED = resources_pb2.Execution.SUCCESS, resources_pb2.Execution.FAILED
DOUBLE = {"module": "transform@1", "inputs": {"double": "{{ item + item }}", "at": "{{ index }}"}}


@pytest_asyncio.fixture(loop_scope="session")
async def client(shared_stack: Stack) -> Client:
    """It is made inside the event loop, because gRPC uses the loop that it finds, and each test closes its own."""
    return Client(shared_stack)


def for_each(items: Any, body: Any = DOUBLE, **config: Any) -> dict[str, Any]:
    return {"id": "each", "module": "for_each@1", "config": {"items": items, "body": body, **config}}


async def loop_output(client: Client, execution: Any, node: str = "each") -> Any:
    (run,) = [run for run in await client.runs_of(execution.id) if run.node == node and not run.iteration]
    return await output_of(client, run.id)


async def test_a_thousand_items_are_done_once_each_and_in_order(client: Client) -> None:
    await client.apply("thousand", [for_each("{{ input.ids }}", maxParallel=100)])
    execution = await client.run("thousand", input={"ids": list(range(1_000))})
    assert execution.state == SUCCESS, execution.error
    expected = [{"double": 2 * number, "at": number} for number in range(1_000)]
    assert await loop_output(client, execution) == expected
    runs = await client.runs_of(execution.id)
    items = [run.iteration for run in runs if run.iteration]
    assert sorted(items) == list(range(1, 1_001))
    assert len({run.effect_key for run in runs}) == len(runs)


async def test_the_nodes_behind_a_loop_see_its_list(client: Client) -> None:
    nodes = [
        {"id": "list", "module": "transform@1", "inputs": {"ids": "{{ input.ids }}"}},
        for_each("{{ nodes.list.output.ids }}"),
        {"id": "sum", "module": "transform@1", "inputs": {"count": "{{ nodes.each.output|length }}"}},
    ]
    edges = [{"from": "list", "to": "each"}, {"from": "each", "to": "sum"}]
    await client.apply("behind", nodes, edges=edges)
    execution = await client.run("behind", input={"ids": [3, 4]})
    assert MessageToDict(execution.output) == {"sum": {"count": 2}}


async def test_large_outputs_of_items_become_one_list(client: Client) -> None:
    body = {"module": "transform@1", "inputs": {"text": "{{ input.text ~ input.text }}", "item": "{{ item }}"}}
    nodes = [
        for_each(["a", "b", "c"], body),
        {"id": "size", "module": "transform@1", "inputs": {"size": "{{ nodes.each.output[2].text|length }}"}},
    ]
    await client.apply("large-list", nodes, edges=[{"from": "each", "to": "size"}])
    execution = await client.run("large-list", input={"text": "x" * 200_000})
    assert execution.state == SUCCESS, execution.error
    assert [each["item"] for each in await loop_output(client, execution)] == ["a", "b", "c"]
    assert MessageToDict(execution.output) == {"size": {"size": 400_000}}


async def test_a_large_list_is_read_once_and_each_item_granted_alone(client: Client) -> None:
    """The items have some 400 KiB together, and are done in two shares."""
    texts = "{{ input.texts + input.texts + input.texts + input.texts }}"
    body = {"module": "transform@1", "inputs": {"n": "{{ item|length }}", "at": "{{ index }}"}}
    await client.apply("large", [for_each(texts, body, maxParallel=500)])
    execution = await client.run("large", input={"texts": ["x" * 200] * 500})
    assert execution.state == SUCCESS, execution.error
    assert await loop_output(client, execution) == [{"n": 200, "at": number} for number in range(2_000)]


@pytest.mark.parametrize("on_failure", ["FAIL", "CONTINUE"])
async def test_a_failed_item_ends_the_loop_or_keeps_its_place(client: Client, on_failure: str) -> None:
    body = {"module": "transform@1", "inputs": {"name": "{{ item.name }}"}}
    items = [{"name": "a"}, {}, {"name": "c"}]
    workflow = f"failing-{on_failure.lower()}"
    await client.apply(workflow, [for_each(items, body, onItemFailure=on_failure, maxParallel=1)])
    execution = await client.run(workflow)
    if on_failure == "FAIL":
        assert (execution.state, execution.error.node, execution.error.type) == (FAILED, "each", "TEMPLATE_ERROR")
        assert execution.error.message.startswith("iteration 2: ")
    else:
        first, error, last = await loop_output(client, execution)
        assert (first, last, error["error"]["type"]) == ({"name": "a"}, {"name": "c"}, "TEMPLATE_ERROR")


async def test_a_repeat_goes_on_until_its_expression_is_true(client: Client) -> None:
    config = {
        "until": "output.turn >= input.turns",
        "delay": "10ms",
        "body": {"module": "transform@1", "inputs": {"turn": "{{ index + 1 }}"}},
    }
    await client.apply("again", [{"id": "again", "module": "repeat@1", "config": config}])
    execution = await client.run("again", input={"turns": 3})
    assert execution.state == SUCCESS, execution.error
    assert await loop_output(client, execution, "again") == {"output": {"turn": 3}, "iterations": 3}
    turns = [run for run in await client.runs_of(execution.id) if run.iteration]
    assert len(turns) == 3, "a turn costs one run"


async def test_an_expression_that_could_grow_is_evaluated_in_a_child(client: Client) -> None:
    config = {"until": "output.turn * 2 > 3", "body": {"module": "transform@1", "inputs": {"turn": "{{ index }}"}}}
    await client.apply("growing", [{"id": "again", "module": "repeat@1", "config": config}])
    execution = await client.run("growing")
    assert await loop_output(client, execution, "again") == {"output": {"turn": 2}, "iterations": 3}


async def test_a_repeat_without_an_end_fails(client: Client) -> None:
    config = {"until": "output.done", "maxIterations": 3, "body": {"module": "transform@1", "inputs": {"done": False}}}
    await client.apply("endless", [{"id": "again", "module": "repeat@1", "config": config}])
    execution = await client.run("endless")
    assert (execution.state, execution.error.type) == (FAILED, "MAX_ITERATIONS")


async def test_an_until_that_cannot_be_evaluated_fails_the_turn(client: Client) -> None:
    config = {"until": "output.missing.deeper", "body": {"module": "noop@1"}}
    await client.apply("unclear", [{"id": "again", "module": "repeat@1", "config": config}])
    execution = await client.run("unclear")
    assert (execution.state, execution.error.type) == (FAILED, "TEMPLATE_ERROR")


async def _are_going(client: Client, execution_id: str) -> bool:
    runs = await client.runs_of(execution_id)
    return sum(bool(run.iteration) and run.state == resources_pb2.Run.RUNNING for run in runs) == 2


async def test_a_cancel_stops_the_items(client: Client) -> None:
    """Until then, the explanation names them and says how far the loop has come."""
    body = {"module": "test.waits@1"}
    await client.apply("held", [for_each([1, 2, 3], body, maxParallel=2)])
    execution = await client.start("held")
    await eventually(lambda: _are_going(client, execution.id), 20.0, "two items to be going")
    request = executions_pb2.ExplainExecutionRequest(execution_id=execution.id)
    explained = (await client.call(client.executions.ExplainExecution, request)).explanation
    told = [each.message.partition(" is ")[0] for each in explained.blockers]
    assert told == ["each[1] (0 of 3 done)", "each[2] (0 of 3 done)"]
    await client.cancel(execution.id)
    assert (await client.end_of(execution.id)).state == resources_pb2.Execution.CANCELLED
