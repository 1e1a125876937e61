"""What each process serves of itself beside health: channelz, to the operator and to nobody else."""

from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc

from services.chassis.grpc.errors import remote_error
from tests.support.stack import Stack

SERVICES = ("api", "dispatcher", "coordinator", "runner")


async def servers(stack: Stack, service: str, metadata: Sequence[tuple[str, str]]) -> Any:
    channel: Any = stack.channel(service)  # its stubs are typed for synchronous ones
    stub: Any = channelz_pb2_grpc.ChannelzStub(channel)
    return await stub.GetServers(channelz_pb2.GetServersRequest(), metadata=metadata, timeout=5)


@pytest.mark.parametrize("service", SERVICES)
async def test_the_system_key_looks_into_each_process(shared_stack: Stack, service: str) -> None:
    assert (await servers(shared_stack, service, shared_stack.metadata("system"))).server


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    ("key", "code", "reason"),
    [
        ("admin", grpc.StatusCode.PERMISSION_DENIED, "ROLE_REQUIRED"),
        ("runner", grpc.StatusCode.PERMISSION_DENIED, "ROLE_REQUIRED"),
        ("", grpc.StatusCode.UNAUTHENTICATED, "KEY_INVALID"),
    ],
)
async def test_any_other_key_does_not(
    shared_stack: Stack, service: str, key: str, code: grpc.StatusCode, reason: str
) -> None:
    metadata = shared_stack.metadata(key) if key else [("authorization", "Bearer nonsense")]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await servers(shared_stack, service, metadata)
    assert caught.value.code() is code
    assert remote_error(caught.value).reason == reason
