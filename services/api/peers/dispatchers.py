"""What is asked of any dispatcher: rows of the queue, and messages for an execution's mailbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from services.api.peers.replicas import Replicas
from services.chassis.grpc.client import Channel
from windlass.dispatcher.v1 import queue_pb2, queue_pb2_grpc, sessions_pb2

# A row carries an input of up to 256 KiB, an answer 64 MiB.
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

    async def page(
        self, workspace: str, from_id: str, limit: int, *, ascending: bool
    ) -> Sequence[queue_pb2.Queued]:
        request = queue_pb2.ListQueuedRequest(
            workspace=workspace, from_execution_id=from_id, ascending=ascending, limit=limit
        )

        async def invoke(channel: Channel, seconds: float) -> queue_pb2.ListQueuedResponse:
            return await queue_pb2_grpc.QueueServiceStub(channel).ListQueued(request, timeout=seconds)

        return (await self._peers.call(invoke)).items

    async def requests(self, workspace: str, request_ids: Sequence[str]) -> Sequence[queue_pb2.UsedRequest]:
        found: list[queue_pb2.UsedRequest] = []
        for start in range(0, len(request_ids), IDS_PER_CALL):
            request = queue_pb2.FindRequestsRequest(
                workspace=workspace, request_ids=request_ids[start : start + IDS_PER_CALL]
            )
            found.extend((await self._find_requests(request)).requests)
        return found

    async def cancel(
        self, workspace: str, execution_id: str, reason: str, caller: str, epoch_ns: int
    ) -> bool:
        message = sessions_pb2.ExecutionMessage(
            # One for all who ask, so that a repeat is the same message.
            message_id=f"cancel:{execution_id}",
            execution_id=execution_id,
            cancel=sessions_pb2.ExecutionMessage.Cancel(reason=reason, caller=caller),
        )
        message.create_time.FromNanoseconds(epoch_ns)
        request = queue_pb2.DeliverRequest(workspace=workspace, message=message)

        async def invoke(channel: Channel, seconds: float) -> queue_pb2.DeliverResponse:
            return await queue_pb2_grpc.QueueServiceStub(channel).Deliver(request, timeout=seconds)

        return (await self._peers.call(invoke)).found

    async def _get(self, request: queue_pb2.GetQueuedRequest) -> queue_pb2.GetQueuedResponse:
        async def invoke(channel: Channel, seconds: float) -> queue_pb2.GetQueuedResponse:
            return await queue_pb2_grpc.QueueServiceStub(channel).GetQueued(request, timeout=seconds)

        return await self._peers.call(invoke)

    async def _find_requests(self, request: queue_pb2.FindRequestsRequest) -> queue_pb2.FindRequestsResponse:
        async def invoke(channel: Channel, seconds: float) -> queue_pb2.FindRequestsResponse:
            return await queue_pb2_grpc.QueueServiceStub(channel).FindRequests(request, timeout=seconds)

        return await self._peers.call(invoke)
