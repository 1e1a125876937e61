"""Temporal on the same workloads: `workloads.py ADDRESS SERVER_PID POSTMASTER_PID` prints one JSON line.

A step is an activity: it is recorded before the next one begins. The worker runs in the client's process, so that
Temporal can hand it the first task in the answer to the start, and the next activity in the answer to a decision.
"""

import asyncio
import itertools
import os
import sys
from datetime import timedelta
from functools import partial

from temporalio import activity, workflow
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from benchmarks.pace import many_at_once
from benchmarks.peers.client import print_line, retried

ADDRESS, PIDS = sys.argv[1], [int(pid) for pid in sys.argv[2:]]
NAMESPACE = QUEUE = "bench"
DAY = {"seconds": 86_400}
TRIAL_EXECUTIONS = 160
STEP_SECONDS_MAX = timedelta(minutes=5)
numbers = itertools.count()


@activity.defn
async def noop() -> None:
    """Nothing."""


@workflow.defn
class Chain:
    """Steps in a row."""

    @workflow.run
    async def run(self, length: int) -> None:
        for _ in range(length):
            await workflow.execute_activity(noop, start_to_close_timeout=STEP_SECONDS_MAX)


@workflow.defn
class Fan:
    """Steps at once."""

    @workflow.run
    async def run(self, width: int) -> None:
        steps = (workflow.execute_activity(noop, start_to_close_timeout=STEP_SECONDS_MAX) for _ in range(width))
        await asyncio.gather(*steps)


async def execute(client: Client, definition: type, size: int) -> None:
    """Start an execution and wait for its end."""
    name = f"{definition.__name__}-{next(numbers)}"
    await client.execute_workflow(definition.__name__, size, id=name, task_queue=QUEUE, request_eager_start=True)


async def connected() -> Client:
    """A client, as soon as the server is up and knows the namespace."""
    client = await retried(lambda: Client.connect(ADDRESS, namespace=NAMESPACE), RuntimeError, RPCError)
    request = RegisterNamespaceRequest(namespace=NAMESPACE, workflow_execution_retention_period=DAY)
    await retried(lambda: client.workflow_service.register_namespace(request), RPCError)
    await retried(client.count_workflows, RPCError)
    return client


async def fives(client: Client, in_flight: int, count: int) -> float:
    """Seconds for all executions."""
    return await many_at_once(lambda: execute(client, Chain, 5), count, in_flight)


async def main() -> None:
    client = await connected()
    worker = Worker(
        client,
        task_queue=QUEUE,
        workflows=[Chain, Fan],
        activities=[noop],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_activities=1_000,
        max_concurrent_workflow_tasks=500,
    )
    forms = {f"in flight: {in_flight}": partial(fives, client, in_flight) for in_flight in (8, 32, 128, 256)}
    one, fan = partial(execute, client, Chain, 1), partial(execute, client, Fan, 1_000)
    async with worker:
        await print_line(one, forms, fan, pids=PIDS, trial_executions=TRIAL_EXECUTIONS)


asyncio.run(main())
os._exit(0)  # threads of the SDK sometimes crash the interpreter while it ends
