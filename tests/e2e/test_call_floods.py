"""Callers that open calls without end, or send requests that never end, on the wire of a running stack.

Others are served meanwhile, and the memory of the process is bounded. The attack runs in a process of its own, so that
only the server can be slow. It sends as fast as a network of 1 Gbit/s.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.chassis.grpc.limits import MEBIBYTE, PUBLIC
from tests.e2e.conftest import World
from tests.support import unfinished
from tests.support.stack import Stack
from windlass.api.v1 import executions_pb2, resources_pb2, workspaces_pb2
from windlass.api.v1.workspaces_pb2_grpc import ApiKeyServiceStub

ROOT = Path(__file__).resolve().parents[2]
GET = "/windlass.api.v1.ExecutionService/GetExecution"
# More than all places of a server.
CALLS = 20_100
PARTS = {"calls": 120, "message_bytes": PUBLIC.refuse_bytes_max, "bytes_per_second": 125e6, "hold_seconds": 2.0}
# For what the calls need beside their requests.
MARGIN_BYTES = 40 * MEBIBYTE


@contextlib.contextmanager
def attacking(attack: str, *arguments: Any, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", __name__, attack, json.dumps(arguments), json.dumps(options)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


async def viewer(stack: Stack) -> list[tuple[str, str]]:
    """The metadata of a new VIEWER key."""
    request = workspaces_pb2.CreateApiKeyRequest(role=workspaces_pb2.VIEWER, title="a flood")
    made = await ApiKeyServiceStub(stack.channel()).CreateApiKey(request, metadata=stack.metadata())
    return [("authorization", f"Bearer {made.key}")]


async def is_healthy(stack: Stack, service: str) -> None:
    """It answers. A runner may say that it cannot work: a busy machine outlives the short leases of these tests."""
    stub: Any = health_pb2_grpc.HealthStub(stack.channel(service))
    answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
    assert service == "runner" or answer.status == health_pb2.HealthCheckResponse.SERVING


async def grown(process: psutil.Process, attack: subprocess.Popen[bytes], stack: Stack, service: str) -> int:
    """The bytes by which the process grows at most while it is attacked."""
    largest = before = process.memory_info().rss
    while attack.poll() is None:
        await is_healthy(stack, service)
        largest = max(largest, process.memory_info().rss)
    return largest - before


@pytest.mark.parametrize("service", ["api", "dispatcher", "coordinator", "runner"])
async def test_parts_of_requests_without_a_key_hold_little_memory(world: World, service: str) -> None:
    stack, process = world.stack, psutil.Process(world.stack.pid(service))
    method = "/grpc.health.v1.Health/Watch"
    with attacking("send_parts", stack.member(service).grpc, method, [], **PARTS) as attack:
        assert await grown(process, attack, stack, service) < PUBLIC.open_arriving_bytes_max + MARGIN_BYTES


async def test_parts_of_requests_with_a_key_hold_no_more_than_its_share(world: World) -> None:
    stack, process = world.stack, psutil.Process(world.stack.pid("api"))
    metadata = await viewer(stack)
    with attacking("send_parts", stack.member("api").grpc, GET, metadata, **PARTS) as attack:
        assert await grown(process, attack, stack, "api") < PUBLIC.key_arriving_bytes_max / 2 + MARGIN_BYTES


async def test_calls_of_one_key_leave_room_for_everyone_else(world: World) -> None:
    stack, metadata = world.stack, await viewer(world.stack)
    attack = attacking(
        "open_calls", stack.member("api").grpc, GET, metadata, calls=CALLS, connections=4, seconds_max=60.0
    )
    served = 0
    with attack as process:
        while process.poll() is None:
            request = executions_pb2.GetExecutionRequest(execution_id=world.rival_execution)
            assert (await world.rival.call(world.rival.executions.GetExecution, request)).execution.id
            # This one needs each of the services to call the others.
            assert (await world.rival.run("theirs")).state == resources_pb2.Execution.SUCCESS
            await is_healthy(stack, "api")
            served += 1
        assert process.stdout is not None
        ended = int(process.stdout.read())
    assert served
    assert ended == CALLS, "a call whose request does not arrive is refused"


if __name__ == "__main__":
    attacks = (unfinished.open_calls, unfinished.send_parts, unfinished.leave_unread)
    chosen: Any = {each.__name__: each for each in attacks}[sys.argv[1]]
    sys.stdout.write(str(chosen(*json.loads(sys.argv[2]), **json.loads(sys.argv[3]))))
