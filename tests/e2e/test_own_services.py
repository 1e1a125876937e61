"""Each process serves channelz to the operator, and to nobody else."""

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
async def test_the_system_key_and_no_other_looks_into_each_process(shared_stack: Stack, service: str) -> None:
    assert (await servers(shared_stack, service, shared_stack.metadata("system"))).server
    others = {name: shared_stack.metadata(name) for name in ("admin", "runner")}
    for metadata in (*others.values(), [("authorization", "Bearer nonsense")]):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await servers(shared_stack, service, metadata)
        is_known = metadata in others.values()
        assert remote_error(caught.value).reason == ("ROLE_REQUIRED" if is_known else "KEY_INVALID")
