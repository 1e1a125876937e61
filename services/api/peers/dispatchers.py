"""Calls to any dispatcher: rows of the queue, and messages for an execution's mailbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from services.api.app.ports import QUEUE_ROWS_MAX, EarlierStart, ExecutionView
from services.api.peers.replicas import Replicas, pieces
from windlass.coordinator.v1.commands_pb2 import ExecutionCommand
from windlass.dispatcher.v1 import queue_pb2 as pb
from windlass.dispatcher.v1 import sessions_pb2
from windlass.dispatcher.v1.queue_pb2_grpc import QueueServiceStub
from windlass.types.v1.start_pb2 import StartOrder


class DispatcherQueue:
    def __init__(self, peers: Replicas) -> None:
        self._peers = peers

    async def queued(self, execution_ids: Sequence[str]) -> Sequence[ExecutionView]:
        found: list[ExecutionView] = []
        for ids in pieces(execution_ids, QUEUE_ROWS_MAX):
            request = pb.GetQueuedRequest(execution_ids=ids)
            response = await self._peers.call(lambda channel: QueueServiceStub(channel).GetQueued, request)
            found.extend(map(execution_of, response.items))
        return found

    async def page(self, workspace: str, from_id: str, limit: int, *, ascending: bool) -> Sequence[ExecutionView]:
        request = pb.ListQueuedRequest(workspace=workspace, from_execution_id=from_id, ascending=ascending, limit=limit)
        response = await self._peers.call(lambda channel: QueueServiceStub(channel).ListQueued, request)
        return [execution_of(row) for row in response.items]

    async def requests(self, workspace: str, request_ids: Sequence[str]) -> Mapping[str, EarlierStart]:
        found: dict[str, EarlierStart] = {}
        for ids in pieces(request_ids, QUEUE_ROWS_MAX):
            request = pb.FindRequestsRequest(workspace=workspace, request_ids=ids)
            response = await self._peers.call(lambda channel: QueueServiceStub(channel).FindRequests, request)
            found |= {used.request_id: EarlierStart(used.request_hash, used.execution_id) for used in response.requests}
        return found

    async def place(self, workspace: str, execution_id: str) -> pb.GetQueuePlaceResponse:
        request = pb.GetQueuePlaceRequest(workspace=workspace, execution_id=execution_id)
        return await self._peers.call(lambda channel: QueueServiceStub(channel).GetQueuePlace, request)

    async def cancel(
        self, workspace: str, execution: ExecutionView, message_id: str, reason: str, caller: str, epoch_ns: int
    ) -> bool:
        message = sessions_pb2.ExecutionMessage(
            message_id=message_id,
            execution_id=execution.id,
            cancel=sessions_pb2.ExecutionMessage.Cancel(reason=reason, caller=caller),
            seen_seq=execution.last_seq,
        )
        message.create_time.FromNanoseconds(epoch_ns)
        request = pb.DeliverRequest(workspace=workspace, message=message)
        return (await self._peers.call(lambda channel: QueueServiceStub(channel).Deliver, request)).found

    async def command(
        self,
        workspace: str,
        execution_id: str,
        message_id: str,
        command: ExecutionCommand,
        start: StartOrder | None = None,
        seen_seq: int | None = None,
    ) -> bool:
        command.message_id = message_id
        message = sessions_pb2.ExecutionMessage(
            message_id=message_id,
            execution_id=execution_id,
            create_time=command.time,
            command=command.SerializeToString(),
            seen_seq=seen_seq,
        )
        request = pb.DeliverRequest(workspace=workspace, message=message, start=start)
        return (await self._peers.call(lambda channel: QueueServiceStub(channel).Deliver, request)).found


def execution_of(row: pb.Queued) -> ExecutionView:
    """An execution that was given up has one event more than its journal, which is empty here."""
    is_failed = row.state == pb.Queued.FAILED
    state = "FAILED" if is_failed else "PENDING"
    return ExecutionView(row.start.execution_id, row.start.workspace, state, int(is_failed), row=row)
