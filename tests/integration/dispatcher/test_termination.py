"""A dispatcher in its own process is asked to stop."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.dispatcher.parties import SCALE, SECONDS, Api, Coordinator, secret_file
from tests.integration.dispatcher.test_service import item
from tests.support.live_sessions import live_sessions
from tests.support.postgres import Database, free_port
from tests.support.probe import eventually, until

TREE = Path(__file__).resolve().parents[3]


async def is_serving(address: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        with contextlib.suppress(grpc.aio.AioRpcError):
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=2.0)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
        return False


async def test_dispatcher_that_is_told_to_go_answers_first_and_exits_cleanly(database: Database) -> None:
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "WINDLASS_GRPC_ADDRESS": address,
        "WINDLASS_METRICS_ADDRESS": "127.0.0.1:0",
        "WINDLASS_DATABASE_URL": database.url("dispatcher"),
        "WINDLASS_SERVICE_SECRET_FILE": str(secret_file()),
        "WINDLASS_LEASE_SCALE": str(SCALE),
        "WINDLASS_LOG_LEVEL": "ERROR",
    }
    leaving = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.dispatcher"), cwd=TREE, env=os.environ | settings
    )
    try:
        await eventually(lambda: is_serving(address), 20.0, "the dispatcher to serve")
        async with Coordinator(address) as coordinator, Api(address) as api:
            grant = await coordinator.take(api, item("leaving"))
            leaving.send_signal(signal.SIGTERM)
            async with asyncio.timeout(SECONDS):
                assert await leaving.wait() == 0
            assert coordinator.holder.rules.leases == {grant.lease.lease_id: grant.lease.epoch}
            assert api.has_ended
            await until(lambda: live_sessions(coordinator.holder) == 0, SECONDS, "the end of the session")
    finally:
        with contextlib.suppress(ProcessLookupError):
            leaving.kill()
        await leaving.wait()
