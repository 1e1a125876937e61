"""`python -m benchmarks.quiet_tenant ADDRESS WORKFLOW COUNT`, with its key on standard input: runs a workflow so often,
one execution after the other, and prints their times in ms as a JSON list.

It is a process of its own, so that what the loud tenants do themselves does not make it slow.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import grpc

from windlass.api.v1 import executions_pb2
from windlass.api.v1.executions_pb2_grpc import ExecutionServiceStub
from windlass.api.v1.resources_pb2 import Execution

# Between two executions.
PAUSE_SECONDS = 0.2
# The first ones, which open the connection, are not counted.
UNCOUNTED = 3
WAIT_SECONDS = 15


async def times_ms(address: str, workflow: str, count: int, key: str) -> list[float]:
    found = []
    request = executions_pb2.StartExecutionRequest(workflow=workflow)
    request.wait.FromSeconds(WAIT_SECONDS)
    metadata = [("authorization", f"Bearer {key}")]
    async with grpc.aio.insecure_channel(address) as channel:
        stub = ExecutionServiceStub(channel)
        for _ in range(UNCOUNTED + count):
            begun = time.perf_counter()
            answer = await stub.StartExecution(request, metadata=metadata, timeout=WAIT_SECONDS + 5)
            found.append((time.perf_counter() - begun) * 1e3)
            if answer.execution.state != Execution.SUCCESS:
                raise RuntimeError(f"execution {answer.execution.id!r} has not succeeded: {answer.execution.error}")
            await asyncio.sleep(PAUSE_SECONDS)
    return found[UNCOUNTED:]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(times_ms(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.stdin.read()))))
