"""One api works on the jobs of several workspaces, and none of them holds up another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import grpc.aio
import psycopg
import pytest

from services.api.app.bulk_worker import BulkWorker
from services.api.app.identifiers import Identifiers
from services.api.app.ports import ExecutionPage, ExecutionQuery, ExecutionView
from services.api.core.bulk_jobs import BulkAction, BulkJob, BulkOrder, BulkState
from services.api.peers import replicas
from services.api.peers.dispatchers import DispatcherQueue
from services.api.peers.replicas import WORKSPACE_CALLS_MAX, Replicas
from services.api.rpc.filters import ExecutionFilter
from services.api.store.bulk_jobs import PostgresBulkJobs
from services.api.store.workspaces import PostgresWorkspaces
from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.client import ChannelPool
from services.chassis.identity.callers import CallerKind, Identity
from services.chassis.postgres.database import Database
from services.chassis.process.batcher import Level
from services.chassis.process.clock import SystemClock
from tests.support.postgres import Database as MadeDatabase
from tests.support.probe import eventually, until
from windlass.dispatcher.v1 import queue_pb2, queue_pb2_grpc

SYSTEM = Identity(CallerKind.SYSTEM, "system-key")
CANCEL = BulkOrder(BulkAction.CANCEL, "state = RUNNING", "", "", b"")
EXECUTIONS = 20
# Longer than any test.
LONG = 600.0


class Dispatcher(queue_pb2_grpc.QueueServiceServicer):
    """Answers the commands of a workspace when it is told to."""

    def __init__(self, *silent: str) -> None:
        self._may_answer = {workspace: asyncio.Event() for workspace in silent}
        self.unanswered: list[str] = []

    async def Deliver(self, request: Any, context: Any) -> Any:
        if request.workspace in self._may_answer:
            self.unanswered.append(request.workspace)
            await self._may_answer[request.workspace].wait()
        return queue_pb2.DeliverResponse(found=True)

    GetQueued = ListQueued = ListFailed = ResolveFailed = FindRequests = Deliver
    ConfigureWorkspace = GetQueuePlace = GetFailed = WakeParked = Deliver

    def answer(self, workspace: str) -> None:
        self._may_answer[workspace].set()


class Cancels:
    """Each workspace has some executions, and jobs cancel them. Half of them are too large for the first page."""

    def __init__(self, queue: DispatcherQueue) -> None:
        self._queue = queue
        self._identifiers = Identifiers(SystemClock())

    async def page(self, asked: ExecutionQuery) -> ExecutionPage:
        ids = [self._identifiers.mint() for _ in range(EXECUTIONS // 2)]
        found = [ExecutionView(id_, asked.workspace, "RUNNING", 1) for id_ in ids]
        return ExecutionPage(found, is_cut=not asked.from_id)

    def filter_of(self, job: BulkJob) -> ExecutionFilter:
        return ExecutionFilter(())

    async def give(self, job: BulkJob, execution_id: str) -> None:
        seen = ExecutionView(execution_id, job.workspace, "RUNNING", 1)
        await self._queue.cancel(job.workspace, seen, f"cancel:{execution_id}", "", job.caller, 1)


@contextlib.asynccontextmanager
async def during(work: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def calls_to(dispatcher: Dispatcher) -> AsyncIterator[DispatcherQueue]:
    server = grpc.aio.server()
    queue_pb2_grpc.add_QueueServiceServicer_to_server(dispatcher, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    peers = Replicas("the dispatcher", AddressBook(f"127.0.0.1:{port}"), ChannelPool(), call_seconds=LONG)
    async with during(peers.run()):
        yield DispatcherQueue(peers)
    await peers.close()
    await server.stop(None)


@contextlib.asynccontextmanager
async def stored_jobs(url: str) -> AsyncIterator[PostgresBulkJobs]:
    """No jobs, and the workspaces `team` and `rival`."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("TRUNCATE workspaces, audit, bulk_jobs, bulk_job_pages CASCADE")
    pool = Database(url, name="test", connections=4)
    for name in ("team", "rival"):
        await PostgresWorkspaces(pool).add(SYSTEM, name, {"tier": 2, "executions_max": 0, "queued_max": 0})
    yield PostgresBulkJobs(pool)
    await pool.close()


async def begin(jobs: PostgresBulkJobs, workspace: str) -> str:
    actor = Identity(CallerKind.MEMBER, "key", workspace, "WORKFLOW", "of a test")
    return (await jobs.add(actor, Identifiers(SystemClock()).mint(), CANCEL, "", datetime.now(UTC))).job_id


async def test_slow_commands_of_one_workspace_do_not_hold_up_the_job_of_another(
    database: MadeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "TRY_SECONDS", LONG)
    dispatcher = Dispatcher("team")
    async with calls_to(dispatcher) as queue, stored_jobs(database.url("api")) as jobs:
        commands: Any = Cancels(queue)
        worker = BulkWorker(jobs, commands, commands, Level(), SystemClock(), per_second=1_000, lease_scale=1.0)
        async with during(worker.run()):
            slow = await begin(jobs, "team")
            await until(lambda: len(dispatcher.unanswered) == WORKSPACE_CALLS_MAX, 30.0, "the commands of the team")
            await ended(jobs, "rival", await begin(jobs, "rival"))
            assert len(dispatcher.unanswered) == WORKSPACE_CALLS_MAX
            dispatcher.answer("team")
            await ended(jobs, "team", slow)


async def ended(jobs: PostgresBulkJobs, workspace: str, job_id: str) -> None:
    async def is_over() -> BulkJob | None:
        job = await jobs.get(workspace, job_id)
        return job if job is not None and job.end_time is not None else None

    job = await eventually(is_over, 30.0, "the end of the job")
    assert (job.state, job.tally.done) == (BulkState.DONE, EXECUTIONS)
