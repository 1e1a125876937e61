"""Exports and replays of journals, by any coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc

from services.api.app.ports import ImportedTo
from services.api.peers.replicas import Replicas
from services.chassis.grpc.errors import DependencyUnavailable, remote_error
from windlass.coordinator.v1 import replays_pb2 as pb
from windlass.coordinator.v1.replays_pb2_grpc import ReplayServiceStub

# A coordinator needs about two seconds for 100,000 events, and others may be before it.
_SECONDS: Final = 120.0
# An import also has large outputs.
_IMPORT_SECONDS: Final = 300.0


class CoordinatorReplays:
    def __init__(self, peers: Replicas) -> None:
        self._peers = peers

    async def export(self, execution_id: str) -> AsyncIterator[Sequence[Any]]:
        """The parts in the order of an export, some at a time. Another coordinator is asked as long as nothing has
        come."""
        request = pb.ExportJournalRequest(execution_id=execution_id)
        for address in self._peers.addresses:
            has_begun = False
            try:
                async for response in ReplayServiceStub(self._peers.channel(address)).ExportJournal(request):
                    has_begun = True
                    yield response.parts
            except grpc.aio.AioRpcError as failure:
                remote = remote_error(failure)
                if not has_begun and remote.may_retry:
                    continue
                raise remote.refusal() from None
            return
        raise DependencyUnavailable(self._peers.name)

    async def replay(self, execution_id: str) -> Any:
        """The Replay. None: no coordinator has the execution."""
        request = pb.ReplayJournalRequest(execution_id=execution_id)
        for address in self._peers.addresses:
            try:
                stub = ReplayServiceStub(self._peers.channel(address))
                response = await stub.ReplayJournal(request, timeout=_SECONDS)
            except grpc.aio.AioRpcError as failure:
                remote = remote_error(failure)
                if remote.may_retry:
                    continue
                raise remote.refusal() from None
            return response.replay if response.HasField("replay") else None
        raise DependencyUnavailable(self._peers.name)

    async def replay_parts(self, parts: AsyncIterator[Sequence[Any]], references: bytes) -> Any:
        """The Replay of an export. It is sent once, because the caller sends it once."""
        for address in self._peers.addresses[:1]:
            stub = ReplayServiceStub(self._peers.channel(address))
            try:
                response = await _answer(stub.ReplayParts(timeout=_SECONDS), _requests(parts, references))
            except grpc.aio.AioRpcError as failure:
                raise remote_error(failure).refusal() from None
            return response.replay
        raise DependencyUnavailable(self._peers.name)

    async def import_parts(self, parts: AsyncIterator[Sequence[Any]], order: ImportedTo) -> tuple[str, bool]:
        """The id of the copy, and whether it was there already. It is sent once, because the caller sends it once."""
        for address in self._peers.addresses[:1]:
            stub = ReplayServiceStub(self._peers.channel(address))
            try:
                response = await _answer(stub.ImportParts(timeout=_IMPORT_SECONDS), _import_requests(parts, order))
            except grpc.aio.AioRpcError as failure:
                raise remote_error(failure).refusal() from None
            return response.execution_id, response.existing
        raise DependencyUnavailable(self._peers.name)


async def _answer(call: Any, requests: AsyncIterator[Any]) -> Any:
    """The answer to these requests. What they raise is raised here: gRPC would swallow it, and the call would hang."""
    try:
        async for request in requests:
            await call.write(request)
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass  # the call is over before all was sent, and its answer says why
    except BaseException:
        call.cancel()
        raise
    return await call


async def _import_requests(
    parts: AsyncIterator[Sequence[Any]], order: ImportedTo
) -> AsyncIterator[pb.ImportPartsRequest]:
    given = order._asdict()
    async for some in parts:
        yield pb.ImportPartsRequest(parts=some, **given)
        given = {}


async def _requests(parts: AsyncIterator[Sequence[Any]], references: bytes) -> AsyncIterator[pb.ReplayPartsRequest]:
    async for some in parts:
        yield pb.ReplayPartsRequest(parts=some, template_references=references)
        references = b""
