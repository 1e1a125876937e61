"""ExplainExecution and GetExecution(as_of_seq) on a running stack."""

from __future__ import annotations

from typing import Any

import pytest_asyncio

from tests.support.api import Client, new_workspace
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import executions_pb2 as pb
from windlass.api.v1 import resources_pb2

Explanation = resources_pb2.Explanation


@pytest_asyncio.fixture(loop_scope="session")
async def client(shared_stack: Stack) -> Client:
    return Client(shared_stack)


async def explained(client: Client, execution_id: str) -> Explanation:
    request = pb.ExplainExecutionRequest(execution_id=execution_id)
    response: pb.ExplainExecutionResponse = await client.call(client.executions.ExplainExecution, request)
    return response.explanation


async def blocked_by(client: Client, execution_id: str, kind: str) -> Any:
    """The blocker of this kind, once there is one."""

    async def found() -> Any:
        explanation = await explained(client, execution_id)
        return next((each for each in explanation.blockers if Explanation.Cause.Name(each.kind) == kind), None)

    return await eventually(found, 15, f"{execution_id} is not {kind}")


async def test_work_that_no_runner_can_do_names_its_module(client: Client) -> None:
    await client.apply("unknown-module", [{"id": "pay", "module": "billing.charge@9"}])
    execution = await client.start("unknown-module")
    blocker = await blocked_by(client, execution.id, "WAITING_FOR_RUNNER")
    assert (blocker.node, blocker.message) == (
        "pay",
        "pay is ready, and no runner that is connected does billing.charge@9",
    )
    await client.call(client.executions.CancelExecution, pb.CancelExecutionRequest(execution_id=execution.id))
    assert not (await explained(client, execution.id)).blockers


async def test_labels_that_no_runner_has_are_named(client: Client) -> None:
    await client.apply("labelled", [{"id": "a", "module": "noop@1", "runnerLabels": {"gpu": "true"}}])
    execution = await client.start("labelled")
    blocker = await blocked_by(client, execution.id, "WAITING_FOR_RUNNER")
    assert blocker.message == "a is ready, and no runner that does noop@1 has the labels gpu=true"
    await client.call(client.executions.CancelExecution, pb.CancelExecutionRequest(execution_id=execution.id))


async def test_a_queued_execution_names_the_one_that_has_the_slot(shared_stack: Stack) -> None:
    client = await new_workspace(shared_stack, "one-slot", executions_max=1)
    await client.apply("slow", [{"id": "a", "module": "delay@1", "config": {"duration": "600s"}}])
    first = await client.start("slow")
    await blocked_by(client, first.id, "RUNNING")
    second = await client.start("slow")
    blocker = await blocked_by(client, second.id, "QUEUED_FOR_SLOT")
    assert first.id in blocker.message
    for each in (second, first):
        await client.call(client.executions.CancelExecution, pb.CancelExecutionRequest(execution_id=each.id))


async def test_the_time_of_an_execution_that_has_ended_adds_up(client: Client) -> None:
    nodes: list[dict[str, Any]] = [
        {"id": "a", "module": "noop@1"},
        {"id": "nap", "module": "sleep@1", "config": {"duration": "300ms"}},
    ]
    await client.apply("short-nap", nodes, edges=[{"from": "a", "to": "nap"}])
    execution = await client.run("short-nap")
    explanation = await explained(client, execution.id)
    shares = {Explanation.Cause.Name(each.cause): each.share for each in explanation.time_split}
    assert abs(sum(shares.values()) - 1) < 1e-6
    assert max(shares, key=lambda cause: shares[cause]) == "SLEEPING"
    assert explanation.text.startswith(f"{execution.id} ended as SUCCESS.")


async def test_an_execution_is_shown_as_it_was_after_an_event(client: Client) -> None:
    await client.apply("past", [{"id": "a", "module": "noop@1"}, {"id": "b", "module": "noop@1"}])
    execution = await client.run("past")

    async def as_of(seq: int) -> Any:
        request = pb.GetExecutionRequest(execution_id=execution.id, as_of_seq=seq)
        return (await client.call(client.executions.GetExecution, request)).execution

    first, last = await as_of(1), await as_of(execution.last_seq + 10)
    assert (first.last_seq, first.state, list(first.summary.succeeded)) == (1, resources_pb2.Execution.RUNNING, [])
    assert (last.last_seq, last.state) == (execution.last_seq, resources_pb2.Execution.SUCCESS)
    assert sorted(last.summary.succeeded) == ["a", "b"]
