"""A start is repeated under its request_id after the workflow has changed, and is still answered with the first
execution. In a batch, each start is judged by itself.
"""

from __future__ import annotations

from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import struct_pb2

from services.chassis.grpc.errors import RemoteError, remote_error, remote_status
from tests.support.api import Client, new_workspace
from tests.support.stack import Stack
from windlass.api.v1 import executions_pb2, resources_pb2, workflows_pb2

# The promised time for the answer to a wrong request, alone or among others.
ANSWER_SECONDS = 1.0
NODES = [{"id": "a", "module": "noop@1"}]
Start = executions_pb2.StartExecutionRequest


@pytest_asyncio.fixture(loop_scope="session")
async def client(shared_stack: Stack) -> Client:
    return Client(shared_stack)


def request_of(workflow: str, number: int = 1, **fields: Any) -> Start:
    made = Start(workflow=workflow, request_id=f"of {workflow}", **fields)
    made.input.update({"id": number})
    return made


async def make_stricter(client: Client, workflow: str) -> None:
    await client.apply(workflow, NODES, inputSchema={"type": "object", "required": ["name"]})


async def archive(client: Client, workflow: str) -> None:
    await client.call(client.workflows.ArchiveWorkflow, workflows_pb2.ArchiveWorkflowRequest(workflow=workflow))


async def refusal(client: Client, request: Start) -> RemoteError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.executions.StartExecution(request, metadata=client.metadata, timeout=ANSWER_SECONDS)
    return remote_error(refused.value)


async def batch(client: Client, *requests: Start) -> list[Any]:
    """The result of each start, or the reason of its refusal."""
    answer = await client.executions.BatchStartExecutions(
        executions_pb2.BatchStartExecutionsRequest(requests=requests), metadata=client.metadata, timeout=ANSWER_SECONDS
    )
    return [item.result if item.HasField("result") else remote_status(item.status).reason for item in answer.items]


@pytest.mark.parametrize(
    ("workflow", "change", "reason"),
    [("tightened", make_stricter, "INPUT_MISMATCH"), ("shelved", archive, "WORKFLOW_ARCHIVED")],
)
async def test_repeat_after_a_change_gets_the_first_execution(
    client: Client, workflow: str, change: Any, reason: str
) -> None:
    await client.apply(workflow, NODES)
    request = request_of(workflow)
    first = (await client.call(client.executions.StartExecution, request)).execution
    await change(client, workflow)
    again = await client.call(client.executions.StartExecution, request)
    assert (again.existing, again.execution.id, again.execution.version) == (True, first.id, 1)
    request.wait.FromSeconds(10)
    waited = await client.call(client.executions.StartExecution, request)
    assert (waited.existing, waited.execution.id) == (True, first.id)
    assert waited.execution.state == resources_pb2.Execution.SUCCESS
    reused = await refusal(client, request_of(workflow, number=2))
    assert (reused.reason, reused.metadata["execution_id"]) == ("REQUEST_ID_REUSED", first.id)
    fresh = Start(workflow=workflow, request_id="fresh")
    assert (await refusal(client, fresh)).reason == reason
    same, other, new = await batch(client, request, request_of(workflow, number=2), fresh)
    assert (same.existing, same.execution.id) == (True, first.id)
    assert (other, new) == ("REQUEST_ID_REUSED", reason)


async def test_malformed_start_of_a_batch_is_refused_by_itself(client: Client) -> None:
    await client.apply("batched", NODES)
    nan, nul = struct_pb2.Struct(), struct_pb2.Struct()
    nan.fields["a"].number_value = float("nan")
    nul.fields["a"].string_value = "\x00"
    malformed = (
        Start(),
        Start(workflow="batched", priority=9),
        Start(workflow="batched", labels={"a": "\x00"}),
        Start(workflow="batched", input=nan),
        Start(workflow="batched", input=nul),
        Start(workflow="ghost"),
    )
    good = Start(workflow="batched")
    first, *told, last = await batch(client, good, *malformed, good)
    assert told == ["INVALID_REQUEST"] * 5 + ["WORKFLOW_NOT_FOUND"]
    assert first.execution.id < last.execution.id


async def test_what_was_queued_before_its_workflow_was_archived_is_done(shared_stack: Stack) -> None:
    crowded = await new_workspace(shared_stack, "archiving", executions_max=1)
    await crowded.apply("in-the-way", [{"id": "nap", "module": "delay@1", "config": {"duration": "1h"}}])
    await crowded.apply("shelved", NODES)
    first = await crowded.start("in-the-way")
    queued = await crowded.start("shelved")
    await archive(crowded, "shelved")
    assert (await refusal(crowded, Start(workflow="shelved"))).reason == "WORKFLOW_ARCHIVED"
    assert (await crowded.get(queued.id)).state == resources_pb2.Execution.PENDING
    await crowded.cancel(first.id)
    assert (await crowded.end_of(queued.id)).state == resources_pb2.Execution.SUCCESS
