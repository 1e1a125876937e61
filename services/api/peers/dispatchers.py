"""Calls to any dispatcher: rows of the queue, and messages for an execution's mailbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from services.api.peers.replicas import Replicas
from windlass.dispatcher.v1 import queue_pb2, sessions_pb2
from windlass.dispatcher.v1.queue_pb2_grpc import QueueServiceStub

# A row carries an input of up to 256 KiB; an answer has at most 64 MiB.
IDS_PER_CALL: Final = 200


class DispatcherQueue:
    def __init__(self, peers: Replicas) -> None:
        self._peers = peers

    async def queued(self, execution_ids: Sequence[str]) -> Sequence[queue_pb2.Queued]:
        found: list[queue_pb2.Queued] = []
        for start in range(0, len(execution_ids), IDS_PER_CALL):
            request = queue_pb2.GetQueuedRequest(execution_ids=execution_ids[start : start + IDS_PER_CALL])
            found.extend((await self._get(request)).items)
        return found

    async def page(self, workspace: str, from_id: str, limit: int, *, ascending: bool) -> Sequence[queue_pb2.Queued]:
        request = queue_pb2.ListQueuedRequest(
            workspace=workspace, from_execution_id=from_id, ascending=ascending, limit=limit
        )
        return (
            await self._peers.call(
                lambda channel, seconds: QueueServiceStub(channel).ListQueued(request, timeout=seconds)
            )
        ).items

    async def requests(self, workspace: str, request_ids: Sequence[str]) -> Sequence[queue_pb2.UsedRequest]:
        found: list[queue_pb2.UsedRequest] = []
        for start in range(0, len(request_ids), IDS_PER_CALL):
            request = queue_pb2.FindRequestsRequest(
                workspace=workspace, request_ids=request_ids[start : start + IDS_PER_CALL]
            )
            found.extend((await self._find_requests(request)).requests)
        return found

    async def cancel(self, workspace: str, execution_id: str, reason: str, caller: str, epoch_ns: int) -> bool:
        message = sessions_pb2.ExecutionMessage(
            # All cancels of an execution have the same id, so a repeat is the same message.
            message_id=f"cancel:{execution_id}",
            execution_id=execution_id,
            cancel=sessions_pb2.ExecutionMessage.Cancel(reason=reason, caller=caller),
        )
        message.create_time.FromNanoseconds(epoch_ns)
        request = queue_pb2.DeliverRequest(workspace=workspace, message=message)
        return (
            await self._peers.call(lambda channel, seconds: QueueServiceStub(channel).Deliver(request, timeout=seconds))
        ).found

    async def _get(self, request: queue_pb2.GetQueuedRequest) -> queue_pb2.GetQueuedResponse:
        return await self._peers.call(
            lambda channel, seconds: QueueServiceStub(channel).GetQueued(request, timeout=seconds)
        )

    async def _find_requests(self, request: queue_pb2.FindRequestsRequest) -> queue_pb2.FindRequestsResponse:
        return await self._peers.call(
            lambda channel, seconds: QueueServiceStub(channel).FindRequests(request, timeout=seconds)
        )
