"""A dispatcher as a process of its own: without its database, killed, and told to go."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.dispatcher.parties import SCALE, SECONDS, Api, Coordinator, secret_file
from tests.integration.dispatcher.test_service import QUEUED, item
from tests.support.postgres import Database, PostgresCluster, free_port, own_server
from tests.support.probe import eventually, until

TREE = Path(__file__).resolve().parents[3]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own_cluster() -> AsyncIterator[PostgresCluster]:
    async with own_server() as server:
        yield PostgresCluster(server)


@contextlib.asynccontextmanager
async def process(
    database: Database, **environment: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    address = environment.setdefault("WINDLASS_GRPC_ADDRESS", f"127.0.0.1:{free_port()}")
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.dispatcher",
        cwd=TREE,
        env={
            **os.environ,
            "WINDLASS_DATABASE_URL": database.url("dispatcher"),
            "WINDLASS_SERVICE_SECRET_FILE": str(secret_file()),
            "WINDLASS_LEASE_SCALE": str(SCALE),
            "WINDLASS_LOG_LEVEL": "ERROR",
            **environment,
        },
    )
    try:
        await in_health(address, SERVING)
        yield started, address
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def in_health(address: str, wanted: int, service: str = "") -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)

        async def probe() -> bool:
            with contextlib.suppress(grpc.aio.AioRpcError):
                answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=2.0)
                return bool(answer.status == wanted)
            return False

        await eventually(probe, 20.0, f"health {wanted}")


async def test_outage_of_the_database_loses_and_doubles_nothing(own_cluster: PostgresCluster) -> None:
    database = await own_cluster.database(migrated=True)
    async with process(database) as (_, address), Coordinator(address) as coordinator, Api(address) as api:
        running = [item("outage", executions_max=50) for _ in range(10)]
        await api.enqueue(*running)
        before = list(await coordinator.granted(10))
        await own_cluster.server.stop(signal.SIGINT)
        await in_health(address, NOT_SERVING, "windlass.dispatcher.v1.EnqueueService")
        coordinator.finish(*before)
        meanwhile = [item("outage", executions_max=50) for _ in range(10)]
        await api.send(*meanwhile)
        await own_cluster.server.start()
        await in_health(address, SERVING, "windlass.dispatcher.v1.EnqueueService")
        answers = await api.enqueue(*meanwhile)
        assert {answer.outcome for answer in answers} == {QUEUED}
        await coordinator.granted(20)
        await coordinator.reported()
        granted = [grant.lease.lease_id for grant in coordinator.grants]
        assert len(granted) == len(set(granted)) == 20
        assert sorted(coordinator.taken) == sorted(each.start.execution_id for each in running)
        assert not coordinator.ended
        assert not coordinator.refused


async def test_killed_dispatcher_leaves_nothing_behind(own_cluster: PostgresCluster) -> None:
    """Killed between the commit of a batch and its grants; the next one finds them."""
    database = await own_cluster.database(migrated=True)
    async with process(database, WINDLASS_CRASH_AT="dispatcher.grant.before_send:1") as (doomed, first):
        coordinator = Coordinator(first, second := f"127.0.0.1:{free_port()}", may_miss=1)
        async with coordinator, Api(first) as api:
            sent = item("killed")
            await api.send(sent)
            async with asyncio.timeout(SECONDS):
                assert await doomed.wait() == -signal.SIGKILL
            async with process(database, WINDLASS_GRPC_ADDRESS=second):
                (grant,) = await coordinator.granted(1)
                assert grant.lease.lease_id == sent.start.execution_id
                assert not coordinator.ended
                async with Api(second) as other:
                    (answer,) = await other.enqueue(sent)
                    assert answer.outcome == QUEUED
                coordinator.finish(grant)
                await coordinator.reported()
                assert len(coordinator.grants) == 1


async def test_dispatcher_that_is_told_to_go_answers_first_and_exits_cleanly(
    own_cluster: PostgresCluster,
) -> None:
    database = await own_cluster.database(migrated=True)
    async with (
        process(database) as (leaving, address),
        Coordinator(address) as coordinator,
        Api(address) as api,
    ):
        await api.enqueue(item("leaving"))
        (grant,) = await coordinator.granted(1)
        leaving.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            assert await leaving.wait() == 0
        assert coordinator.holder.leases == {grant.lease.lease_id: grant.lease.epoch}
        assert api.has_ended
        await until(lambda: coordinator.holder.sessions_live == 0, SECONDS, "the end of the session")
