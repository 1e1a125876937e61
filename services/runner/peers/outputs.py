"""Large values by way of the coordinators: for a runner that shares no disk with them, and for what a grant leaves out.

Any coordinator answers. A call is tried a few times, on another coordinator if there is one, because everything here
may be repeated: the same bytes have the same name.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

import grpc

from services.chassis.blobs import is_blob_key
from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.client import Channel, ChannelPool
from services.chassis.grpc.errors import DependencyUnavailable, RemoteError, remote_error
from services.chassis.process.backoff import Backoff
from services.runner.app.ports import Outputs
from services.runner.core.job import OutputMissing, RunLease, StoredOutput
from windlass.coordinator.v1 import sessions_pb2 as pb
from windlass.coordinator.v1.sessions_pb2_grpc import RunnerOutputsStub
from windlass.types.v1.session_pb2 import Lease

_PART_BYTES: Final = 512 * 1024
_CALL_SECONDS: Final = 300.0
_TRIES: Final = 8
# Coordinators refuse a transfer when too many are under way, or too many arrive slowly.
_LATER: Final = frozenset({"TRANSFERS_EXCEEDED", "SLOW_REQUESTS_EXCEEDED"})
_T = TypeVar("_T")


class CoordinatorOutputs:
    def __init__(
        self, shared: Outputs | None, addresses: AddressBook, channels: ChannelPool, instance_id: Callable[[], str]
    ) -> None:
        """`shared`: the directory that this runner shares with the coordinators. None: it shares none."""
        self._shared = shared
        self._addresses = addresses
        self._channels = channels
        self._instance_id = instance_id

    async def put(self, value: bytes, lease: RunLease) -> StoredOutput:
        """Keep a value, which is durable on return. Raises OSError."""
        if self._shared is not None:
            return await self._shared.put(value, lease)
        run = self._held(lease)

        async def upload(channel: Channel) -> StoredOutput:
            call = RunnerOutputsStub(channel).UploadOutput(iter(_requests(run, value)), timeout=_CALL_SECONDS)
            output = (await call).output
            return StoredOutput(output.key, output.sha256, output.size_bytes, lease)

        try:
            return await self._tried(upload)
        except (RemoteError, DependencyUnavailable) as failure:
            raise OSError(errno.EIO, f"no coordinator has taken it: {failure}") from None

    async def get(self, ref: StoredOutput) -> bytes:
        """A value as it was put. Raises OutputMissing."""
        if self._shared is not None and is_blob_key(ref.key):
            return await self._shared.get(ref)
        request = pb.DownloadOutputRequest(run=self._held(ref.lease), key=ref.key)

        async def download(channel: Channel) -> bytes:
            value = bytearray()
            async for response in RunnerOutputsStub(channel).DownloadOutput(request, timeout=_CALL_SECONDS):
                value += response.data
            return bytes(value)

        try:
            return await self._tried(download)
        except (RemoteError, DependencyUnavailable) as failure:
            raise OutputMissing(f"{ref.key}: {failure}") from None

    def _held(self, lease: RunLease) -> pb.HeldRun:
        return pb.HeldRun(lease=Lease(lease_id=lease.run_id, epoch=lease.epoch), instance_id=self._instance_id())

    async def _tried(self, transfer: Callable[[Channel], Awaitable[_T]]) -> _T:
        """The answer of the first coordinator that gives one. Raises RemoteError or DependencyUnavailable."""
        backoff = Backoff()
        failure: Exception = DependencyUnavailable("the coordinators")
        for _ in range(_TRIES):
            addresses = sorted(await self._addresses.read())
            if addresses:
                try:
                    return await transfer(self._channels.get(random.choice(addresses)))
                except grpc.aio.AioRpcError as error:
                    failure = remote = remote_error(error)
                    if not remote.may_retry and remote.reason not in _LATER:
                        break
            await asyncio.sleep(backoff.next())
        raise failure


def _requests(run: pb.HeldRun, value: bytes) -> Iterator[pb.UploadOutputRequest]:
    yield pb.UploadOutputRequest(run=run)
    for start in range(0, len(value), _PART_BYTES):
        yield pb.UploadOutputRequest(data=value[start : start + _PART_BYTES])
