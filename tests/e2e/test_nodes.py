"""Nodes from their definition to the result of their execution."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.runner.test_rendering import HOSTILE
from tests.support.api import Client
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import executions_pb2, resources_pb2, workflows_pb2

SUCCESS = resources_pb2.Execution.SUCCESS


@pytest_asyncio.fixture(loop_scope="session")
async def client(shared_stack: Stack) -> Client:
    """It is made inside the event loop, because gRPC uses the loop that it finds, and each test closes its own."""
    return Client(shared_stack)


@pytest.mark.parametrize("wait", ["10ms", 0.01])
async def test_a_sleep_whose_config_holds_templates_is_rendered_first(client: Client, wait: str | float) -> None:
    nodes: list[dict[str, Any]] = [
        {"id": "wait", "module": "transform@1", "inputs": {"d": "{{ input.d }}"}},
        {"id": "rest", "module": "sleep@1", "config": {"duration": "{{ nodes.wait.output.d }}"}},
    ]
    await client.apply("nap", nodes, edges=[{"from": "wait", "to": "rest"}])
    execution = await client.run("nap", input={"d": wait})
    assert execution.state == SUCCESS, execution.error
    rest = next(run for run in await client.runs_of(execution.id) if run.node == "rest")
    assert rest.module == "sleep@1"


async def test_template_that_takes_all_memory_fails_its_node_and_leaves_the_runner(
    shared_stack: Stack, client: Client
) -> None:
    nodes: list[dict[str, Any]] = [
        {"id": "hostile", "module": "transform@1", "inputs": {"a": HOSTILE[0]}},
        {"id": "good", "module": "transform@1", "inputs": {"a": "{{ input.n * 2 }}"}},
    ]
    await client.apply("hostile", nodes)
    before = shared_stack.pid("runner")
    execution = await client.run("hostile", input={"n": 6})
    assert (list(execution.summary.failed), list(execution.summary.succeeded)) == (["hostile"], ["good"])
    assert execution.error.type == "TEMPLATE_ERROR"
    assert shared_stack.pid("runner") == before


async def begun(client: Client, workflow: str) -> resources_pb2.Execution:
    """Start it, and wait until its runner has said that a run is going."""
    execution = await client.start(workflow)

    async def is_going() -> bool:
        return any(run.state == resources_pb2.Run.RUNNING for run in await client.runs_of(execution.id))

    await eventually(is_going, 20.0, "the run to be going")
    return execution


async def cancellations(client: Client, execution_id: str) -> list[tuple[str, bool]]:
    """Each run of an ended execution that was stopped, and whether its runner said so."""
    answer = await client.call(
        client.executions.ListEvents, executions_pb2.ListEventsRequest(execution_id=execution_id)
    )
    return [(event.node, event.details["isReported"]) for event in answer.events if event.type == "RunCancelled"]


@pytest.mark.parametrize("module", ["test.waits@1", "test.blocks@1"])
async def test_a_cancelled_run_is_ended_by_its_runners_word(client: Client, module: str) -> None:
    workflow = module.split(".")[1].replace("@", "-")
    await client.apply(workflow, [{"id": "long", "module": module, "config": {"seconds": 30}}])
    execution = await begun(client, workflow)
    await client.cancel(execution.id)
    assert (await client.end_of(execution.id)).state == resources_pb2.Execution.CANCELLED
    assert await cancellations(client, execution.id) == [("long", True)]


async def test_own_module_is_warned_of_only_while_no_runner_announces_it(client: Client) -> None:
    request = workflows_pb2.ValidateWorkflowRequest()
    nodes = [{"id": "a", "module": "test.says@1"}, {"id": "b", "module": "test.says@2"}]
    request.definition.update({"name": "own", "nodes": nodes})

    async def warned() -> list[tuple[str, str]]:
        answer = await client.call(client.workflows.ValidateWorkflow, request)
        return [(each.path, each.reason) for each in answer.warnings]

    await eventually(lambda: _equal(warned(), [("nodes[1].module", "MODULE_NOT_BUILT_IN")]), 10, "the runner's attach")
    applied = await client.call(
        client.workflows.ApplyWorkflow, workflows_pb2.ApplyWorkflowRequest(definition=request.definition)
    )
    assert [each.path for each in applied.warnings] == ["nodes[1].module"]


async def _equal(answer: Awaitable[Any], expected: Any) -> bool:
    return bool(await answer == expected)


async def test_events_with_large_outputs_are_listed_in_short_pages_and_watched_without_a_gap(client: Client) -> None:
    nodes = [{"id": f"n{number}", "module": "transform@1", "inputs": {"x": "{{ input.text }}"}} for number in range(30)]
    await client.apply("large-events", nodes, output={})
    execution = await client.run("large-events", input={"text": "x" * 200_000})
    assert execution.state == SUCCESS, execution.error
    request = executions_pb2.ListEventsRequest(execution_id=execution.id, page_size=1_000)
    listed: list[int] = []
    while True:
        answer = await client.call(client.executions.ListEvents, request)
        assert answer.ByteSize() < 4 * 1024 * 1024
        listed += [event.seq for event in answer.events]
        if not answer.next_page_token:
            break
        request.page_token = answer.next_page_token
    watch = executions_pb2.WatchExecutionRequest(execution_id=execution.id)
    watched = [
        response.event.seq
        async for response in client.executions.WatchExecution(watch, metadata=client.metadata, timeout=60)
    ]
    assert listed == watched == list(range(1, execution.last_seq + 1))
