"""The public contract, as a program uses it: the api of a running stack with a key in hand."""

from typing import Any, Protocol

import grpc.aio
from google.protobuf import json_format

from tests.support.stack import Stack
from windlass.api.v1 import executions_pb2, resources_pb2, runs_pb2, workflows_pb2, workspaces_pb2
from windlass.api.v1.executions_pb2_grpc import ExecutionServiceStub
from windlass.api.v1.runs_pb2_grpc import RunServiceStub
from windlass.api.v1.workflows_pb2_grpc import WorkflowServiceStub
from windlass.api.v1.workspaces_pb2_grpc import ApiKeyServiceStub, WorkspaceServiceStub

CALL_SECONDS = 50.0
WAIT_SECONDS = 40


class Served(Protocol):
    """A stack that runs an api."""

    def channel(self) -> grpc.aio.Channel: ...

    def key(self) -> str: ...


class Client:
    """A client in the workspace of its key; without a key, the ADMIN of `default`."""

    def __init__(self, stack: Served, key: str = "") -> None:
        channel = stack.channel()
        self.workflows = WorkflowServiceStub(channel)
        self.executions = ExecutionServiceStub(channel)
        self.runs = RunServiceStub(channel)
        self.metadata = [("authorization", f"Bearer {key or stack.key()}")]

    async def call(self, method: Any, request: Any, *extra: tuple[str, str]) -> Any:
        return await method(request, metadata=[*self.metadata, *extra], timeout=CALL_SECONDS)

    async def apply(self, name: str, nodes: list[dict[str, Any]], **more: Any) -> None:
        request = workflows_pb2.ApplyWorkflowRequest()
        json_format.ParseDict({"name": name, "nodes": nodes, **more}, request.definition)
        await self.call(self.workflows.ApplyWorkflow, request)

    async def run(self, workflow: str, *extra: tuple[str, str], **fields: Any) -> resources_pb2.Execution:
        """Start it, and wait for its end."""
        request = executions_pb2.StartExecutionRequest(workflow=workflow, **fields)
        request.wait.FromSeconds(WAIT_SECONDS)
        answer = await self.call(self.executions.StartExecution, request, *extra)
        execution: resources_pb2.Execution = answer.execution
        return execution

    async def runs_of(self, execution_id: str) -> list[resources_pb2.Run]:
        request = runs_pb2.ListRunsRequest(execution_id=execution_id, page_size=1_000)
        answer = await self.call(self.runs.ListRuns, request)
        return list(answer.runs)

    async def get_run(self, run_id: str) -> resources_pb2.Run:
        answer = await self.call(self.runs.GetRun, runs_pb2.GetRunRequest(run_id=run_id))
        run: resources_pb2.Run = answer.run
        return run

    async def start(self, workflow: str, *extra: tuple[str, str], **fields: Any) -> resources_pb2.Execution:
        """Enqueued; not waited for."""
        request = executions_pb2.StartExecutionRequest(workflow=workflow, **fields)
        answer = await self.call(self.executions.StartExecution, request, *extra)
        execution: resources_pb2.Execution = answer.execution
        return execution

    async def start_many(self, workflow: str, count: int) -> list[resources_pb2.Execution]:
        """Start them in one batch."""
        one = executions_pb2.StartExecutionRequest(workflow=workflow)
        request = executions_pb2.BatchStartExecutionsRequest(requests=[one] * count)
        answer = await self.call(self.executions.BatchStartExecutions, request)
        return [item.result.execution for item in answer.items]

    async def get(self, execution_id: str) -> resources_pb2.Execution:
        request = executions_pb2.GetExecutionRequest(execution_id=execution_id)
        answer = await self.call(self.executions.GetExecution, request)
        execution: resources_pb2.Execution = answer.execution
        return execution

    async def end_of(self, execution_id: str) -> resources_pb2.Execution:
        """Followed through its events to the last."""
        request = executions_pb2.WatchExecutionRequest(execution_id=execution_id)
        async for _ in self.executions.WatchExecution(request, metadata=self.metadata, timeout=CALL_SECONDS):
            pass
        return await self.get(execution_id)

    async def cancel(self, execution_id: str, reason: str = "enough") -> resources_pb2.Execution:
        request = executions_pb2.CancelExecutionRequest(execution_id=execution_id, reason=reason)
        answer = await self.call(self.executions.CancelExecution, request)
        execution: resources_pb2.Execution = answer.execution
        return execution


async def new_workspace(stack: Stack, name: str, *, executions_max: int) -> Client:
    """Made with the system key; its ADMIN."""
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
