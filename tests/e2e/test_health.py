"""Each process serves grpc.health.v1 to anyone, and channelz to the operator alone."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.chassis.grpc.errors import remote_error
from tests.support.api import Client
from tests.support.probe import eventually
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import resources_pb2

SERVED = {
    "api": ["", "windlass.api.v1.ExecutionService", "windlass.api.v1.WorkflowService"],
    "dispatcher": ["", "windlass.dispatcher.v1.CoordinatorSessions", "windlass.dispatcher.v1.EnqueueService"],
    "coordinator": ["", "windlass.coordinator.v1.RunnerSessions", "windlass.coordinator.v1.ReadService"],
    "runner": [""],
}
WITH_DATABASE = ("api", "dispatcher", "coordinator")
STATUS = health_pb2.HealthCheckResponse


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack() -> AsyncIterator[Stack]:
    async with running_stack(own_postgres=True) as made:
        yield made


async def statuses(stack: Stack, service: str) -> set[int]:
    stub: Any = health_pb2_grpc.HealthStub(stack.channel(service))
    asked = [health_pb2.HealthCheckRequest(service=name) for name in SERVED[service]]
    return {(await stub.Check(request, timeout=5)).status for request in asked}


async def all_say(stack: Stack, services: tuple[str, ...], status: int) -> None:
    for service in services:

        async def said(service: str = service) -> bool:
            return await statuses(stack, service) == {status}

        await eventually(said, 30, f"{service} to say {STATUS.ServingStatus.Name(status)} of all it serves")


async def test_each_service_answers_by_name_to_anyone(stack: Stack) -> None:
    await all_say(stack, tuple(SERVED), STATUS.SERVING)


@pytest.mark.chaos
async def test_health_follows_the_database(stack: Stack) -> None:
    assert stack.postgres is not None
    client = Client(stack)
    await client.apply("after", [{"id": "only", "module": "noop@1"}])
    await stack.postgres.stop()
    await all_say(stack, WITH_DATABASE, STATUS.NOT_SERVING)
    await stack.postgres.start()
    await all_say(stack, tuple(SERVED), STATUS.SERVING)
    assert (await client.run("after")).state == resources_pb2.Execution.SUCCESS


async def servers(stack: Stack, service: str, metadata: Sequence[tuple[str, str]]) -> Any:
    channel: Any = stack.channel(service)  # its stubs are typed for synchronous ones
    stub: Any = channelz_pb2_grpc.ChannelzStub(channel)
    return await stub.GetServers(channelz_pb2.GetServersRequest(), metadata=metadata, timeout=5)


@pytest.mark.parametrize("service", SERVED)
async def test_the_system_key_and_no_other_looks_into_each_process(shared_stack: Stack, service: str) -> None:
    assert (await servers(shared_stack, service, shared_stack.metadata("system"))).server
    others = {name: shared_stack.metadata(name) for name in ("admin", "runner")}
    for metadata in (*others.values(), [("authorization", "Bearer nonsense")]):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await servers(shared_stack, service, metadata)
        is_known = metadata in others.values()
        assert remote_error(caught.value).reason == ("ROLE_REQUIRED" if is_known else "KEY_INVALID")
