"""A client of a stack, and the workflows that it runs, by public RPCs only, as a client in any language would do it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format

from benchmarks.measure import percentile
from windlass.api.v1 import executions_pb2, resources_pb2, runs_pb2, workflows_pb2
from windlass.api.v1.executions_pb2_grpc import ExecutionServiceStub
from windlass.api.v1.runs_pb2_grpc import RunServiceStub
from windlass.api.v1.workflows_pb2_grpc import WorkflowServiceStub

SUCCESS = resources_pb2.Execution.SUCCESS
WAIT_SECONDS = 120


def chain(name: str, length: int) -> dict[str, Any]:
    """`length` no-op nodes in a row."""
    nodes = [{"id": f"n{number}", "module": "noop@1"} for number in range(length)]
    edges = [{"from": f"n{number}", "to": f"n{number + 1}"} for number in range(length - 1)]
    return {"name": name, "nodes": nodes, "edges": edges}


def fan(name: str, width: int) -> dict[str, Any]:
    """`width` no-op nodes at once and a join behind them."""
    nodes = [{"id": f"n{number}", "module": "noop@1"} for number in range(width)]
    edges = [{"from": f"n{number}", "to": "all"} for number in range(width)]
    return {"name": name, "nodes": [*nodes, {"id": "all", "module": "join@1"}], "edges": edges}


class Client:
    """One connection to an api, with the key of an administrator."""

    def __init__(self, home: Path, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", 64 << 20)])
        key = (home / "admin.key").read_text(encoding="ascii").strip()
        self._metadata = (("authorization", f"Bearer {key}"),)
        self.executions = ExecutionServiceStub(self._channel)
        self._workflows = WorkflowServiceStub(self._channel)
        self._runs = RunServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def apply(self, definition: dict[str, Any]) -> None:
        request = workflows_pb2.ApplyWorkflowRequest()
        json_format.ParseDict(definition, request.definition)
        await self._workflows.ApplyWorkflow(request, metadata=self._metadata, timeout=30)

    async def run(self, workflow: str) -> None:
        """Start an execution and wait for its result in the same call."""
        request = executions_pb2.StartExecutionRequest(workflow=workflow)
        request.wait.seconds = WAIT_SECONDS
        answer = await self.executions.StartExecution(request, metadata=self._metadata, timeout=WAIT_SECONDS + 5)
        _must_succeed(answer.execution)

    async def start(self, workflow: str) -> str:
        request = executions_pb2.StartExecutionRequest(workflow=workflow)
        answer = await self.executions.StartExecution(request, metadata=self._metadata, timeout=30)
        return answer.execution.id

    async def run_batch(self, workflow: str, size: int) -> None:
        """Start a batch and wait for its results in the same call."""
        start = executions_pb2.StartExecutionRequest(workflow=workflow)
        start.wait.seconds = WAIT_SECONDS
        request = executions_pb2.BatchStartExecutionsRequest(requests=[start] * size)
        answer = await self.executions.BatchStartExecutions(request, metadata=self._metadata, timeout=WAIT_SECONDS + 5)
        for item in answer.items:
            if item.HasField("status"):
                raise RuntimeError(item.status.message)
            _must_succeed(item.result.execution)

    async def first_run_begun(self, execution_id: str) -> float:
        """Wall time in seconds at which a runner began the first run."""
        while True:
            request = runs_pb2.ListRunsRequest(execution_id=execution_id, page_size=1)
            answer = await self._runs.ListRuns(request, metadata=self._metadata, timeout=30)
            if answer.runs and answer.runs[0].HasField("start_time"):
                return answer.runs[0].start_time.ToNanoseconds() / 1e9
            await asyncio.sleep(0.2)


def _must_succeed(execution: resources_pb2.Execution) -> None:
    if execution.state != SUCCESS:
        raise RuntimeError(f"execution {execution.id!r} is {execution.state}: {execution.error.message}")


async def latency(client: Client, per_second: float, seconds: float = 6.0) -> dict[str, float]:
    """L at one rate: p50 and p95 in ms. A run that began before the client saw its acknowledgement counts as 0."""
    starts: list[asyncio.Task[tuple[str, float]]] = []
    draw = random.Random(7)

    async def one() -> tuple[str, float]:
        execution_id = await client.start("bench-one")
        return execution_id, time.time()

    due = time.perf_counter()
    end = due + seconds
    while due < end:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        starts.append(asyncio.create_task(one()))
        due += draw.expovariate(per_second)
    return await _begun_after(client, await asyncio.gather(*starts))


async def _begun_after(client: Client, started: Sequence[tuple[str, float]]) -> dict[str, float]:
    waits = []
    for execution_id, acknowledged in started[:: max(1, len(started) // 300)]:
        begun = await client.first_run_begun(execution_id)
        waits.append(max(0.0, begun - acknowledged) * 1e3)
    return {"p50_ms": round(percentile(waits, 0.5), 2), "p95_ms": round(percentile(waits, 0.95), 2)}
