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
