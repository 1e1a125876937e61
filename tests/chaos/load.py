"""A client under fire: starts with request ids, repeats what got no answer, then asks how all of it ended."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
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

# A client may meet these codes while things die; any other code is a fault of ours.
PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
CALL_SECONDS = 5.0
FINAL_SECONDS = 120.0
PAUSE_SECONDS = 0.05
# Its one run goes on for longer than any test; safe to be done again, should its runner die.
HELD = "chaos-held"
HELD_NODE = {"id": "held", "module": "ledger.put@1", "idempotent": True, "config": {"seconds": 3_600}}

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

    async def ask(self, method: Callable[..., Awaitable[Any]], request: Any) -> Any:
        return await self.call(partial(method, request, metadata=self._metadata, timeout=CALL_SECONDS))

    async def apply(self) -> None:
        for name, graph in {**GRAPHS, HELD: {"nodes": [HELD_NODE]}}.items():
            request = workflows_pb2.ApplyWorkflowRequest()
            json_format.ParseDict({"name": name, **graph}, request.definition)
            await self.ask(self._workflows.ApplyWorkflow, request)

    async def start(self, workflow: str) -> str:
        """One execution, durable on return, whose end is asked for in the history."""
        execution_id = await self._start(workflow)
        self.acknowledged[execution_id] = workflow
        return execution_id

    @contextlib.asynccontextmanager
    async def held(self, count: int) -> AsyncIterator[list[str]]:
        """So many executions with a run under way from before the block until after it."""
        started = [await self._start(HELD) for _ in range(count)]
        for execution_id in started:
            await self._granted(execution_id)
        yield started
        for execution_id in started:
            request = executions_pb2.CancelExecutionRequest(execution_id=execution_id)
            await self.ask(self.executions.CancelExecution, request)
        for execution_id in started:
            await self.final(execution_id)

    async def _granted(self, execution_id: str) -> None:
        async with asyncio.timeout(FINAL_SECONDS):
            while not await self.runs(execution_id):
                await pause(PAUSE_SECONDS)

    async def _start(self, workflow: str) -> str:
        request = executions_pb2.StartExecutionRequest(workflow=workflow, request_id=uuid.uuid4().hex)
        json_format.ParseDict({"n": 42}, request.input)
        execution_id: str = (await self.ask(self.executions.StartExecution, request)).execution.id
        return execution_id

    async def start_any(self) -> str:
        return await self.start(self._random.choice(list(GRAPHS)))

    async def keep_starting(self, is_over: asyncio.Event, count_min: int, seconds_between: float) -> None:
        """A mixed lot for as long as something dies, and at least so much."""
        async with asyncio.TaskGroup() as group:
            while not is_over.is_set() or len(self.acknowledged) < count_min:
                group.create_task(self.start_any())
                await pause(seconds_between)

    async def final(self, execution_id: str) -> Any:
        """The execution once it has ended."""
        request = executions_pb2.GetExecutionRequest(execution_id=execution_id)
        async with asyncio.timeout(FINAL_SECONDS):
            while True:
                execution = (await self.ask(self.executions.GetExecution, request)).execution
                if execution.HasField("end_time"):
                    return execution
                await pause(PAUSE_SECONDS)

    async def runs(self, execution_id: str) -> Sequence[Any]:
        request = runs_pb2.ListRunsRequest(execution_id=execution_id, page_size=1000)
        return list((await self.ask(self._runs.ListRuns, request)).runs)

    async def history(self) -> History:
        """All that was acknowledged, once it is over."""
        history = History()
        for execution_id in list(self.acknowledged):
            history.executions[execution_id] = await self.final(execution_id)
            history.runs[execution_id] = list(await self.runs(execution_id))
        history.read_calls(self._ledger)
        return history
