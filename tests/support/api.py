"""The public contract, as a program uses it: the api of a running stack with a key in hand."""

import json
from collections.abc import Sequence
from typing import Any, Protocol

import grpc.aio
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import MethodDescriptor

from services.chassis.grpc.errors import RemoteError, remote_error
from tests.support.stack import Stack
from windlass.api.v1 import (
    approvals_pb2,
    circuits_pb2,
    dead_letters_pb2,
    executions_pb2,
    exports_pb2,
    resources_pb2,
    runs_pb2,
    workflows_pb2,
    workspaces_pb2,
)
from windlass.api.v1.approvals_pb2_grpc import ApprovalServiceStub
from windlass.api.v1.circuits_pb2_grpc import CircuitServiceStub
from windlass.api.v1.executions_pb2_grpc import ExecutionServiceStub
from windlass.api.v1.runs_pb2_grpc import RunServiceStub
from windlass.api.v1.workflows_pb2_grpc import WorkflowServiceStub
from windlass.api.v1.workspaces_pb2_grpc import ApiKeyServiceStub, WorkspaceServiceStub

Execution = resources_pb2.Execution
CALL_SECONDS = 20.0
WAIT_SECONDS = 15


# Every method of the public services by its name.
METHODS: dict[str, MethodDescriptor] = {
    method.name: method
    for file in (
        approvals_pb2,
        circuits_pb2,
        dead_letters_pb2,
        executions_pb2,
        exports_pb2,
        runs_pb2,
        workflows_pb2,
        workspaces_pb2,
    )
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
_READING = ("Get", "List", "Watch", "Validate", "Explain", "Export", "Replay")
# The names of those that change something.
CHANGING = {name for name in METHODS if not name.startswith(_READING)}


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def method_on(channel: Any, method: MethodDescriptor) -> Any:
    """The method on a channel. It takes bytes, so that a test can send bytes that are not a request."""
    make = channel.unary_stream if method.server_streaming else channel.unary_unary
    if method.client_streaming:
        make = channel.stream_unary
    call = make(
        path_of(method),
        request_serializer=bytes,
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    if method.client_streaming:
        # The bytes are the only message of the stream.
        return lambda raw, **more: call(iter([raw]), **more)
    return call


async def answer_to(
    channel: Any, method: MethodDescriptor, raw: bytes, metadata: Sequence[tuple[str, str]], seconds: float
) -> RemoteError:
    """How the method answers these bytes: its refusal, or OK."""
    call = method_on(channel, method)(raw, metadata=metadata, timeout=seconds)
    try:
        if method.server_streaming:
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return remote_error(error)
    return RemoteError(grpc.StatusCode.OK, "", "")


class Served(Protocol):
    """A stack that runs an api."""

    def channel(self) -> grpc.aio.Channel: ...

    def key(self) -> str: ...


class Client:
    """A client in the workspace of its key. Without a key, it is the ADMIN of `default`. It calls the first api unless
    it is given a channel to another one."""

    call_seconds = CALL_SECONDS

    def __init__(self, stack: Served, key: str = "", channel: grpc.aio.Channel | None = None) -> None:
        channel = channel or stack.channel()
        self.workflows = WorkflowServiceStub(channel)
        self.executions = ExecutionServiceStub(channel)
        self.runs = RunServiceStub(channel)
        self.approvals = ApprovalServiceStub(channel)
        self.circuits = CircuitServiceStub(channel)
        self.key = key or stack.key()
        self.metadata = [("authorization", f"Bearer {self.key}")]

    async def call(self, method: Any, request: Any, *extra: tuple[str, str]) -> Any:
        return await method(request, metadata=[*self.metadata, *extra], timeout=self.call_seconds)

    async def apply(self, name: str, nodes: list[dict[str, Any]], **more: Any) -> None:
        request = workflows_pb2.ApplyWorkflowRequest()
        json_format.ParseDict({"name": name, "nodes": nodes, **more}, request.definition)
        await self.call(self.workflows.ApplyWorkflow, request)

    async def start(self, workflow: str, *extra: tuple[str, str], wait: int = 0, **fields: Any) -> Execution:
        """Start an execution. With `wait`, in seconds, also wait for its end."""
        request = executions_pb2.StartExecutionRequest(workflow=workflow, **fields)
        if wait:
            request.wait.FromSeconds(wait)
        return (await self.call(self.executions.StartExecution, request, *extra)).execution  # type: ignore[no-any-return]

    async def run(self, workflow: str, *extra: tuple[str, str], **fields: Any) -> Execution:
        """Start it, and wait for its end."""
        return await self.start(workflow, *extra, wait=WAIT_SECONDS, **fields)

    async def start_many(self, workflow: str, count: int) -> list[Execution]:
        """Start them in one batch."""
        one = executions_pb2.StartExecutionRequest(workflow=workflow)
        request = executions_pb2.BatchStartExecutionsRequest(requests=[one] * count)
        answer = await self.call(self.executions.BatchStartExecutions, request)
        return [item.result.execution for item in answer.items]

    async def get(self, execution_id: str) -> Execution:
        request = executions_pb2.GetExecutionRequest(execution_id=execution_id)
        return (await self.call(self.executions.GetExecution, request)).execution  # type: ignore[no-any-return]

    async def runs_of(self, execution_id: str) -> list[resources_pb2.Run]:
        request = runs_pb2.ListRunsRequest(execution_id=execution_id, page_size=1_000)
        runs: list[resources_pb2.Run] = []
        while True:
            answer = await self.call(self.runs.ListRuns, request)
            runs += answer.runs
            if not answer.next_page_token:
                return runs
            request.page_token = answer.next_page_token

    async def end_of(self, execution_id: str) -> Execution:
        """Follow the execution to its last event, and return it."""
        request = executions_pb2.WatchExecutionRequest(execution_id=execution_id)
        async for _ in self.executions.WatchExecution(request, metadata=self.metadata, timeout=self.call_seconds):
            pass
        return await self.get(execution_id)

    async def cancel(self, execution_id: str) -> None:
        request = executions_pb2.CancelExecutionRequest(execution_id=execution_id, reason="enough")
        await self.call(self.executions.CancelExecution, request)


async def output_of(client: Client, run_id: str) -> Any:
    return json.loads(await stored_output(client, run_id))


async def stored_output(client: Client, run_id: str) -> bytes:
    """Its JSON, byte for byte."""
    request = runs_pb2.GetRunOutputRequest(run_id=run_id)
    call = client.runs.GetRunOutput(request, metadata=client.metadata, timeout=client.call_seconds)
    return b"".join([response.data async for response in call])


async def new_workspace(stack: Stack, name: str, *, executions_max: int) -> Client:
    """Make a workspace with the system key. Returns a client that is its ADMIN."""
    system = stack.metadata("system")
    await WorkspaceServiceStub(stack.channel()).CreateWorkspace(
        workspaces_pb2.CreateWorkspaceRequest(
            workspace=name, tier=workspaces_pb2.PRO, limits=workspaces_pb2.Limits(executions_max=executions_max)
        ),
        metadata=system,
    )
    made = await ApiKeyServiceStub(stack.channel()).CreateApiKey(
        workspaces_pb2.CreateApiKeyRequest(workspace=name, role=workspaces_pb2.ADMIN, title="of the test"),
        metadata=system,
    )
    return Client(stack, made.key)
