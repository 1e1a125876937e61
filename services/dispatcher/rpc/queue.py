"""QueueService: queued and leased executions, messages for them, and the limits of workspaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from services.chassis.grpc.errors import Refusal
from services.chassis.identity.callers import caller
from services.chassis.telemetry.logs import logger
from services.dispatcher.app.admission_inbox import AdmissionInbox
from services.dispatcher.app.deliveries import Deliveries
from services.dispatcher.core.items import QueuedRow, QueuePlace, UsedRequest, WorkspaceLimits
from services.dispatcher.rpc.translate import is_execution_id, limits_of, mailbox_message_of, place_of, queued_of
from windlass.dispatcher.v1 import queue_pb2, queue_pb2_grpc

log = logger(__name__)

IDS_MAX: Final = 1_000
LIST_MAX: Final = 1_000


class QueueReads(Protocol):
    async def get(self, execution_ids: Sequence[str]) -> list[QueuedRow]: ...

    async def list_of(
        self, workspace: str, *, from_execution_id: str, is_ascending: bool, limit: int
    ) -> list[QueuedRow]: ...

    async def place_of(self, execution_id: str, workspace: str) -> QueuePlace | None: ...

    async def requests(self, workspace: str, request_ids: Sequence[str]) -> list[UsedRequest]: ...

    async def configure(self, workspace: str, limits: WorkspaceLimits, is_closed: bool) -> list[str]: ...


class QueueServicer(queue_pb2_grpc.QueueServiceServicer):
    def __init__(self, *, reads: QueueReads, deliveries: Deliveries, inbox: AdmissionInbox) -> None:
        self._reads = reads
        self._deliveries = deliveries
        self._inbox = inbox

    async def GetQueued(self, request: Any, context: Any) -> queue_pb2.GetQueuedResponse:
        if len(request.execution_ids) > IDS_MAX:
            raise Refusal("INVALID_REQUEST", f"a request has at most {IDS_MAX} ids")
        # No execution has an id of another form.
        ids = [each for each in request.execution_ids if is_execution_id(each)]
        rows = await self._reads.get(ids) if ids else []
        return queue_pb2.GetQueuedResponse(items=[queued_of(row) for row in rows])

    async def ListQueued(self, request: Any, context: Any) -> queue_pb2.ListQueuedResponse:
        if request.from_execution_id and not is_execution_id(request.from_execution_id):
            raise Refusal("INVALID_REQUEST", "from_execution_id must be a UUID in lower case")
        if request.limit < 0:
            raise Refusal("INVALID_REQUEST", "limit must not be negative")
        rows = await self._reads.list_of(
            request.workspace,
            from_execution_id=request.from_execution_id,
            is_ascending=request.ascending,
            limit=min(request.limit or LIST_MAX, LIST_MAX),
        )
        return queue_pb2.ListQueuedResponse(items=[queued_of(row) for row in rows])

    async def GetQueuePlace(self, request: Any, context: Any) -> queue_pb2.GetQueuePlaceResponse:
        if not is_execution_id(request.execution_id):
            return queue_pb2.GetQueuePlaceResponse()
        return place_of(await self._reads.place_of(request.execution_id, request.workspace))

    async def FindRequests(self, request: Any, context: Any) -> queue_pb2.FindRequestsResponse:
        if not request.workspace:
            raise Refusal("INVALID_REQUEST", "workspace must be set")
        if len(request.request_ids) > IDS_MAX:
            raise Refusal("INVALID_REQUEST", f"a request has at most {IDS_MAX} ids")
        rows = await self._reads.requests(request.workspace, request.request_ids)
        return queue_pb2.FindRequestsResponse(requests=[queue_pb2.UsedRequest(**row._asdict()) for row in rows])

    async def Deliver(self, request: Any, context: Any) -> queue_pb2.DeliverResponse:
        if not request.workspace and caller().name != "coordinator":
            raise Refusal("INVALID_REQUEST", "workspace must be set")
        found = await self._deliveries.deliver(mailbox_message_of(request))
        return queue_pb2.DeliverResponse(found=found)

    async def ConfigureWorkspace(self, request: Any, context: Any) -> queue_pb2.ConfigureWorkspaceResponse:
        if not request.workspace:
            raise Refusal("INVALID_REQUEST", "workspace must be set")
        limits = limits_of(request.limits)
        failed = await self._reads.configure(request.workspace, limits, request.closed)
        for execution_id in failed:
            log.error("error processing item", execution_id=execution_id, reason="WORKSPACE_CLOSED")
        self._inbox.limits_changed(request.workspace, limits)
        return queue_pb2.ConfigureWorkspaceResponse()
