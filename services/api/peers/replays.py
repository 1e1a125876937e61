"""Exports and replays of journals, by any coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any, Final

import grpc

from services.api.app import refusals
from services.api.app.ports import ImportedTo
from services.api.peers.replicas import Replicas
from services.chassis.grpc.errors import DependencyUnavailable, remote_error
from services.chassis.identity.callers import caller
from services.chassis.process.fair_line import FairLine, NoTurn
from windlass.coordinator.v1 import replays_pb2 as pb
from windlass.coordinator.v1.replays_pb2_grpc import ReplayServiceStub

# A coordinator needs about two seconds for 100,000 events, and others may be before it.
_SECONDS: Final = 120.0
# An import also has large outputs.
_IMPORT_SECONDS: Final = 300.0
# Replays and imports at once: of all workspaces, and of each. Their callers may send slowly.
_AT_ONCE: Final = 16
_AT_ONCE_OF_EACH: Final = 2
_WAIT_SECONDS: Final = 60.0


class CoordinatorReplays:
    """Replays and imports go to the coordinators in turn, because each does few at once. Workspaces share the places
    that there are for them here, so that one with many waits for itself."""

    def __init__(self, peers: Replicas) -> None:
        self._peers = peers
        self._line = FairLine(_AT_ONCE, places_of_each=_AT_ONCE_OF_EACH)
        self._turn = 0

    def export(self, execution_id: str) -> AsyncIterator[Sequence[Any]]:
        """The parts in the order of an export, some at a time."""
        request = pb.ExportJournalRequest(execution_id=execution_id)
        return self._peers.parts(lambda channel: ReplayServiceStub(channel).ExportJournal(request), attrgetter("parts"))

    async def replay(self, execution_id: str) -> Any:
        """The Replay. None: no coordinator has the execution."""
        request = pb.ReplayJournalRequest(execution_id=execution_id)
        async with self._place():
            for stub in self._stubs():
                try:
                    response = await stub.ReplayJournal(request, timeout=_SECONDS)
                except grpc.aio.AioRpcError as failure:
                    remote = remote_error(failure)
                    if remote.may_retry:
                        continue
                    raise remote.refusal() from None
                return response.replay if response.HasField("replay") else None
        raise DependencyUnavailable(self._peers.name)

    async def replay_parts(self, parts: AsyncIterator[Sequence[Any]], references: bytes) -> Any:
        """The Replay of an export."""
        requests = _requests(parts, references, caller().tenant)
        async with self._place():
            response = await self._answer(lambda stub: stub.ReplayParts(timeout=_SECONDS), requests)
        return response.replay

    async def import_parts(self, parts: AsyncIterator[Sequence[Any]], order: ImportedTo) -> tuple[str, bool]:
        """The id of the copy, and whether it was there already."""
        requests = _import_requests(parts, order)
        async with self._place():
            response = await self._answer(lambda stub: stub.ImportParts(timeout=_IMPORT_SECONDS), requests)
        return response.execution_id, response.existing

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        try:
            async with self._line.turn(caller().tenant, _WAIT_SECONDS):
                yield
        except NoTurn:
            raise refusals.replays_exceeded() from None

    def _stubs(self) -> Iterator[Any]:
        """All coordinators. Each call begins at the next one."""
        addresses, self._turn = self._peers.addresses, self._turn + 1
        for place in range(len(addresses)):
            yield ReplayServiceStub(self._peers.channel(addresses[(self._turn + place) % len(addresses)]))

    async def _answer(self, begin: Callable[[Any], Any], requests: AsyncIterator[Any]) -> Any:
        """The answer of the first coordinator that takes the first request. The others are sent once, as the caller
        sends them once. If `requests` raises, so does this: gRPC would swallow it, and the call would hang."""
        first = await anext(requests)
        for stub in self._stubs():
            call = begin(stub)
            has_begun = False
            try:
                await call.write(first)
                has_begun = True
                async for request in requests:
                    await call.write(request)
                await call.done_writing()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass  # the call is over before all was sent, and its answer says why
            except BaseException:
                call.cancel()
                raise
            try:
                return await call
            except grpc.aio.AioRpcError as failure:
                remote = remote_error(failure)
                if not has_begun and remote.may_retry:
                    continue
                raise remote.refusal() from None
        raise DependencyUnavailable(self._peers.name)


async def _import_requests(
    parts: AsyncIterator[Sequence[Any]], order: ImportedTo
) -> AsyncIterator[pb.ImportPartsRequest]:
    given = order._asdict()
    async for some in parts:
        yield pb.ImportPartsRequest(parts=some, **given)
        given = {}


async def _requests(
    parts: AsyncIterator[Sequence[Any]], references: bytes, workspace: str
) -> AsyncIterator[pb.ReplayPartsRequest]:
    async for some in parts:
        yield pb.ReplayPartsRequest(parts=some, template_references=references, workspace=workspace)
        references, workspace = b"", ""
