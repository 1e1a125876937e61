"""What a client or an operator does that makes a service pass a named crash point."""

import asyncio
import itertools
import os
import signal
import uuid
from collections.abc import Awaitable, Callable
from functools import partial

import psycopg
from google.protobuf import json_format

from tests.chaos.load import CALL_SECONDS, Load
from tests.support.pace import pause
from tests.support.stack import Stack
from windlass.api.v1 import executions_pb2, workflows_pb2, workspaces_pb2
from windlass.api.v1.executions_pb2_grpc import ExecutionServiceStub
from windlass.api.v1.workflows_pb2_grpc import WorkflowServiceStub
from windlass.api.v1.workspaces_pb2_grpc import ApiKeyServiceStub, WorkspaceServiceStub
from windlass.types.v1.start_pb2 import StartOrder

NAP = "chaos-nap"
# Between two deaths that only serve to bring another service to its point.
SETTLE_SECONDS = 1.5
_PENDING = 1


class Stimuli:
    """By the point that they lead to; those that the mixed load reaches need none."""

    def __init__(self, stack: Stack, load: Load) -> None:
        self._stack = stack
        self._load = load
        self._numbers = itertools.count(1)
        self._channels = [stack.channel("api", each["replica"]) for each in stack.entries("api")]
        self._admin = stack.metadata()
        self._system = stack.metadata("system")

    def of(self, point: str) -> Callable[[], Awaitable[None]]:
        known: dict[str, Callable[[], Awaitable[None]]] = {
            "api.start": self.start_everywhere,
            "api.cancel": self.cancel_everywhere,
            "api.workflow": self.apply_everywhere,
            "api.workspace": self.workspaces_everywhere,
            "api.key": self.keys_everywhere,
            "dispatcher.hand_back": partial(self.end_a_coordinator, signal.SIGTERM),
            "dispatcher.end": partial(self.end_a_coordinator, signal.SIGKILL),
            "dispatcher.fail": self.queue_what_nobody_can_run,
            "dispatcher.configure": self.workspaces_everywhere,
            "dispatcher.deliver": self.cancel_everywhere,
            "dispatcher.forget": self.cancel_everywhere,
            "dispatcher.wake": self.nap,
            "coordinator.parked": self.nap,
            "runner": self.crowd,
        }
        return next((do for start, do in known.items() if point.startswith(start)), self._nothing)

    async def _nothing(self) -> None:
        """The load does it."""

    async def start_everywhere(self) -> None:
        for channel in self._channels:
            request = executions_pb2.StartExecutionRequest(
                workflow="chaos-branch", request_id=uuid.uuid4().hex
            )
            json_format.ParseDict({"n": 42}, request.input)
            await ExecutionServiceStub(channel).StartExecution(
                request, metadata=self._admin, timeout=CALL_SECONDS
            )

    async def crowd(self) -> None:
        """More at once than the other runners take: the one that has just come back gets its share."""
        names = ["chaos-slow"] * 18 + ["chaos-large"] * 8
        await asyncio.gather(*map(self._load.start, names))
        await pause(SETTLE_SECONDS)

    async def cancel_everywhere(self) -> None:
        for channel in self._channels:
            request = executions_pb2.CancelExecutionRequest(execution_id=await self._napping())
            await ExecutionServiceStub(channel).CancelExecution(
                request, metadata=self._admin, timeout=CALL_SECONDS
            )

    async def nap(self) -> None:
        await self._napping()

    async def apply_everywhere(self) -> None:
        for channel in self._channels:
            graph = {"name": "chaos-other", "nodes": [{"id": f"n{next(self._numbers)}", "module": "noop@1"}]}
            request = workflows_pb2.ApplyWorkflowRequest()
            json_format.ParseDict(graph, request.definition)
            await WorkflowServiceStub(channel).ApplyWorkflow(
                request, metadata=self._admin, timeout=CALL_SECONDS
            )

    async def workspaces_everywhere(self) -> None:
        for channel in self._channels:
            name = f"w{next(self._numbers)}"
            await WorkspaceServiceStub(channel).CreateWorkspace(
                workspaces_pb2.CreateWorkspaceRequest(workspace=name, tier=workspaces_pb2.PRO),
                metadata=self._system,
                timeout=CALL_SECONDS,
            )
            await WorkspaceServiceStub(channel).DeleteWorkspace(
                workspaces_pb2.DeleteWorkspaceRequest(workspace=name),
                metadata=self._system,
                timeout=CALL_SECONDS,
            )

    async def keys_everywhere(self) -> None:
        for channel in self._channels:
            request = workspaces_pb2.CreateApiKeyRequest(role=workspaces_pb2.VIEWER, title="chaos")
            await ApiKeyServiceStub(channel).CreateApiKey(request, metadata=self._admin, timeout=CALL_SECONDS)

    async def end_a_coordinator(self, how: signal.Signals) -> None:
        ready = [each for each in self._stack.entries("coordinator") if each["ready"]]
        if ready:
            await self._napping()
            os.kill(ready[next(self._numbers) % len(ready)]["pid"], how)
        await pause(SETTLE_SECONDS)

    async def queue_what_nobody_can_run(self) -> None:
        """A row whose definition does not exist: no client can make one, and what cannot be run must not stay."""
        async with await psycopg.AsyncConnection.connect(self._stack.superuser_url()) as connection:
            execution_id = str(uuid.uuid4())
            order = StartOrder(
                execution_id=execution_id,
                workspace="default",
                workflow="chaos-row",
                version=1,
                version_id=str(uuid.uuid4()),
                input=b"{}",
                priority=3,
            )
            await connection.execute(
                "INSERT INTO dispatcher.queue (execution_id, workspace, state, priority, enqueue_time, start)"
                " VALUES (%s, %s, %s, %s, now(), %s)",
                (execution_id, order.workspace, _PENDING, order.priority, order.SerializeToString()),
            )
        await pause(SETTLE_SECONDS)

    async def _napping(self) -> str:
        """An execution that sleeps long enough (10 s and more) to be parked, or to be cancelled."""
        request = workflows_pb2.ApplyWorkflowRequest()
        node = {"id": "nap", "module": "sleep@1", "config": {"duration": "12s"}}
        json_format.ParseDict({"name": NAP, "nodes": [node]}, request.definition)
        stub = WorkflowServiceStub(self._channels[0])
        await self._load.call(lambda: stub.ApplyWorkflow(request, metadata=self._admin, timeout=CALL_SECONDS))
        started = executions_pb2.StartExecutionRequest(workflow=NAP, request_id=uuid.uuid4().hex)
        executions = ExecutionServiceStub(self._channels[0])
        answer = await self._load.call(
            lambda: executions.StartExecution(started, metadata=self._admin, timeout=CALL_SECONDS)
        )
        return answer.execution.id
