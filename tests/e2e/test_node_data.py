"""What later nodes see of earlier ones, and what a person sees of all of them."""

from __future__ import annotations

from typing import Any

import pytest_asyncio
from google.protobuf import json_format

from tests.support.api import Client
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import resources_pb2

Execution = resources_pb2.Execution


@pytest_asyncio.fixture(loop_scope="session")
async def client(shared_stack: Stack) -> Client:
    """It is made inside the event loop, because gRPC uses the loop that it finds, and each test closes its own."""
    return Client(shared_stack)


async def test_branches_are_merged_and_a_handled_failure_tells_why(client: Client) -> None:
    nodes: list[dict[str, Any]] = [
        {"id": "pay", "module": "fail@1", "config": {"type": "PERMANENT", "message": "no money"}},
        {"id": "ship", "module": "transform@1", "inputs": {"by": "ship"}},
        {"id": "refuse", "module": "transform@1", "inputs": {"why": "{{ nodes.pay.error.message }}"}},
        {
            "id": "end",
            "module": "transform@1",
            "inputs": {
                "answer": "{{ nodes.ship.output or nodes.refuse.output }}",
                "states": "{{ nodes.pay.state }} {{ nodes.ship.state }} {{ nodes.refuse.state }}",
            },
        },
    ]
    edges = [
        {"from": "pay", "to": "ship"},
        {"from": "pay", "to": "refuse", "when": "failure"},
        {"from": "ship", "to": "end"},
        {"from": "refuse", "to": "end"},
    ]
    facts = "{{ execution.id }} {{ execution.workflow }} {{ execution.version }} {{ execution.create_time }}"
    output = {"end": "{{ nodes.end.output }}", "facts": facts}
    await client.apply("merged", nodes, edges=edges, output=output)
    execution = await client.run("merged")
    assert execution.state == Execution.SUCCESS, execution.error
    assert json_format.MessageToDict(execution.output) == {
        "end": {"answer": {"why": "no money"}, "states": "FAILED SKIPPED SUCCESS"},
        "facts": f"{execution.id} merged 1 {execution.create_time.ToJsonString()}",
    }


async def test_an_attempt_goes_on_from_the_cursor_of_the_one_that_has_just_failed(client: Client) -> None:
    retry = {"attempts": 5, "initialDelay": "10ms"}
    await client.apply("counted", [{"id": "count", "module": "test.counts@1", "config": {"rows": 3}, "retry": retry}])
    execution = await client.run("counted")
    assert json_format.MessageToDict(execution.output) == {"count": {"row": 3, "attempt": 3}}


async def test_a_running_execution_names_its_running_nodes_and_a_cancelled_one_what_it_cancelled(
    client: Client,
) -> None:
    nodes: list[dict[str, Any]] = [
        {"id": "first", "module": "noop@1"},
        {"id": "long", "module": "test.waits@1"},
        {"id": "nap", "module": "sleep@1", "config": {"duration": "1h"}},
        {"id": "last", "module": "noop@1"},
    ]
    edges = [{"from": "first", "to": "long"}, {"from": "first", "to": "nap"}, {"from": "long", "to": "last"}]
    await client.apply("seen-running", nodes, edges=edges)
    execution = await client.start("seen-running")

    async def is_running() -> bool:
        return sorted((await client.get(execution.id)).summary.running) == ["long", "nap"]

    await eventually(is_running, 20.0, "both nodes to be running")
    await client.cancel(execution.id)
    summary = (await client.end_of(execution.id)).summary
    assert json_format.MessageToDict(summary) == {"succeeded": ["first"], "cancelled": ["long", "nap", "last"]}


def shop(id: str, **more: Any) -> dict[str, Any]:
    """A step of an order that can be undone. Its compensation is tried twice."""
    undo = {
        "module": "test.undoes@1",
        "inputs": {"of": f"{{{{ nodes.{id}.output.made }}}}", "why": "{{ error.node }} {{ error.message }}"},
        "retry": {"attempts": 2, "initialDelay": "10ms"},
    }
    return {
        "id": id,
        "module": "transform@1",
        "inputs": {"made": f"{id} for {{{{ input.order }}}}"},
        "compensate": undo | more,
    }


async def undone(client: Client, execution_id: str) -> list[tuple[str, int, str]]:
    """The runs of compensations in the order in which they were made: node, attempt, state."""
    runs = await client.runs_of(execution_id)
    state = resources_pb2.Run.State.Name
    return [(run.node, run.attempt, state(run.state)) for run in runs if run.node.endswith("$undo")]


async def test_an_order_whose_shipping_fails_is_undone_in_reverse(client: Client) -> None:
    nodes = [
        shop("reserve"),
        shop("charge", config={"failures": 1}),
        shop("label", config={"failures": 9}),
        {"id": "ship", "module": "fail@1", "config": {"type": "PERMANENT", "message": "no truck is free"}},
    ]
    edges = [{"from": "reserve", "to": "charge"}, {"from": "charge", "to": "label"}, {"from": "label", "to": "ship"}]
    await client.apply("order", nodes, edges=edges)
    execution = await client.run("order", input={"order": 7})
    assert (execution.state, execution.error.node) == (Execution.FAILED, "ship")
    assert json_format.MessageToDict(execution.summary) == {
        "succeeded": ["reserve", "charge", "label"],
        "failed": ["ship"],
        "compensated": ["reserve", "charge"],
        "notCompensated": ["label"],
    }
    assert await undone(client, execution.id) == [
        ("label$undo", 1, "FAILED"),
        ("label$undo", 2, "FAILED"),
        ("charge$undo", 1, "FAILED"),
        ("charge$undo", 2, "SUCCESS"),
        ("reserve$undo", 1, "SUCCESS"),
    ]
    runs = {run.node: run for run in await client.runs_of(execution.id)}
    output = json_format.MessageToDict(runs["charge$undo"].output)
    assert output == {"of": "charge for 7", "why": "ship no truck is free"}
    keys = {run.effect_key for run in runs.values()}
    assert len(keys) == len(runs), "what undoes a node has another effect key than the node"


async def test_a_cancelled_order_is_undone_and_a_second_cancel_changes_nothing(client: Client) -> None:
    nodes = [shop("reserve", config={"failures": 1}, retry={"attempts": 2, "initialDelay": "1s"})]
    nodes.append({"id": "nap", "module": "sleep@1", "config": {"duration": "1h"}})
    await client.apply("order-cancelled", nodes, edges=[{"from": "reserve", "to": "nap"}])
    execution = await client.start("order-cancelled", input={"order": 7})

    async def is_asleep() -> bool:
        return list((await client.get(execution.id)).summary.running) == ["nap"]

    await eventually(is_asleep, 20.0, "the sleep")
    await client.cancel(execution.id)
    await client.cancel(execution.id)
    ended = await client.end_of(execution.id)
    assert (ended.state, ended.error.type) == (Execution.CANCELLED, "CANCELLED")
    assert (list(ended.summary.compensated), list(ended.summary.cancelled)) == (["reserve"], ["nap"])
