"""A client under fire: starts with request ids, repeats what got no answer, then asks how all of it ended."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf import json_format

from tests.chaos.history import GRAPHS, History
from tests.support.pace import pause
from tests.support.stack import Stack
from windlass.api.v1 import executions_pb2, runs_pb2, workflows_pb2
from windlass.api.v1.executions_pb2_grpc import ExecutionServiceStub
from windlass.api.v1.runs_pb2_grpc import RunServiceStub
from windlass.api.v1.workflows_pb2_grpc import WorkflowServiceStub

# What a client may meet while things die; anything else is a fault of ours.
PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
CALL_SECONDS = 5.0
FINAL_SECONDS = 120.0
PAUSE_SECONDS = 0.05

T = TypeVar("T")


class Load:
    """Executions of the mixed graphs on one stack."""

    def __init__(self, stack: Stack, ledger: Path, seed: int) -> None:
        self._metadata = stack.metadata()
        channel = stack.channel()
        self.executions = ExecutionServiceStub(channel)
        self._workflows = WorkflowServiceStub(channel)
        self._runs = RunServiceStub(channel)
        self._ledger = ledger
        self._random = random.Random(seed)
        self.acknowledged: dict[str, str] = {}

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """The answer, however often it takes."""
        async with asyncio.timeout(FINAL_SECONDS):
            while True:
                try:
                    return await work()
                except grpc.aio.AioRpcError as error:
                    if error.code() not in PASSING:
                        raise
                await pause(PAUSE_SECONDS)

    async def apply(self) -> None:
        for name, graph in GRAPHS.items():
            request = workflows_pb2.ApplyWorkflowRequest()
            json_format.ParseDict({"name": name, **graph}, request.definition)
            await self.call(partial(self._workflows.ApplyWorkflow, request, metadata=self._metadata))

    async def start(self, workflow: str) -> str:
        """One execution, durable on return."""
        request = executions_pb2.StartExecutionRequest(workflow=workflow, request_id=uuid.uuid4().hex)
        json_format.ParseDict({"n": 42}, request.input)
        answer = await self.call(
            lambda: self.executions.StartExecution(request, metadata=self._metadata, timeout=CALL_SECONDS)
        )
        self.acknowledged[answer.execution.id] = workflow
        return answer.execution.id

    async def start_any(self) -> str:
        return await self.start(self._random.choice(list(GRAPHS)))

    async def start_many(self, count: int, seconds: float) -> None:
        """A mixed lot, spread over a time."""
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self.start_any())
                await pause(self._random.uniform(0, 2 * seconds / count))

    async def final(self, execution_id: str) -> Any:
        """The execution once it has ended."""
        request = executions_pb2.GetExecutionRequest(execution_id=execution_id)
        async with asyncio.timeout(FINAL_SECONDS):
            while True:
                answer = await self.call(
                    lambda: self.executions.GetExecution(
                        request, metadata=self._metadata, timeout=CALL_SECONDS
                    )
                )
                if answer.execution.HasField("end_time"):
                    return answer.execution
                await pause(PAUSE_SECONDS)

    async def runs(self, execution_id: str) -> Sequence[Any]:
        request = runs_pb2.ListRunsRequest(execution_id=execution_id, page_size=1000)
        answer = await self.call(
            lambda: self._runs.ListRuns(request, metadata=self._metadata, timeout=CALL_SECONDS)
        )
        return list(answer.runs)

    async def history(self) -> History:
        """All that was acknowledged, once it is over."""
        history = History()
        for execution_id in list(self.acknowledged):
            history.executions[execution_id] = await self.final(execution_id)
            history.runs[execution_id] = list(await self.runs(execution_id))
        history.read_calls(self._ledger)
        return history
