"""QueueService: queued and leased executions, messages for them, and the limits of workspaces."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from services.chassis.grpc.errors import Refusal
from services.chassis.identity.callers import caller
from services.chassis.telemetry.logs import logger
from services.dispatcher.app.admission_inbox import AdmissionInbox
from services.dispatcher.app.deliveries import Deliveries
from services.dispatcher.core.items import (
    FailedPlace,
    QueuedRow,
    QueuePlace,
    Requeued,
    Requeueing,
    RequeueOrder,
    UsedRequest,
    WorkspaceLimits,
)
from services.dispatcher.rpc.translate import (
    clean,
    is_execution_id,
    limits_of,
    listed_of,
    mailbox_message_of,
    place_of,
    queued_of,
    requeue_of,
    seen_time,
)
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


class FailedRows(Protocol):
    async def list_of(
        self, workspace: str, after: FailedPlace | None, limit: int, *, is_ascending: bool
    ) -> list[QueuedRow]: ...

    async def requeue(self, workspace: str, execution_id: str, asked: RequeueOrder) -> Requeueing | None: ...

    async def discard(
        self, workspace: str, execution_id: str, failure_time: datetime | None, reviewer: str, notes: str
    ) -> QueuedRow | None: ...

    async def find(self, workspace: str, execution_id: str) -> QueuedRow | None: ...


class ParkedRows(Protocol):
    async def wake_parked(
        self, workspace: str, leases: Sequence[tuple[str, int]]
    ) -> tuple[Sequence[Requeued], Sequence[str]]:
        """Executions that are parked by these leases are woken. Also returns those that are held under them."""
        ...


class QueueServicer(queue_pb2_grpc.QueueServiceServicer):
    def __init__(
        self,
        *,
        reads: QueueReads,
        failed_rows: FailedRows,
        deliveries: Deliveries,
        parked_rows: ParkedRows,
        inbox: AdmissionInbox,
    ) -> None:
        self._reads = reads
        self._failed_rows = failed_rows
        self._deliveries = deliveries
        self._parked_rows = parked_rows
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

    async def ListFailed(self, request: Any, context: Any) -> queue_pb2.ListFailedResponse:
        after = None
        if request.HasField("after_time"):
            if not is_execution_id(request.after_execution_id):
                raise Refusal("INVALID_REQUEST", "after_execution_id must be a UUID in lower case")
            after = FailedPlace(request.after_time.ToDatetime(UTC), request.after_execution_id)
        limit = min(request.limit, LIST_MAX) if request.limit > 0 else LIST_MAX
        rows = await self._failed_rows.list_of(request.workspace, after, limit, is_ascending=request.ascending)
        return queue_pb2.ListFailedResponse(items=[listed_of(row) for row in rows])

    async def GetFailed(self, request: Any, context: Any) -> queue_pb2.GetFailedResponse:
        is_id = is_execution_id(request.execution_id)
        row = await self._failed_rows.find(request.workspace, request.execution_id) if is_id else None
        return queue_pb2.GetFailedResponse(row=None if row is None else queued_of(row))

    async def ResolveFailed(self, request: Any, context: Any) -> queue_pb2.ResolveFailedResponse:
        workspace, execution_id = request.workspace, request.execution_id
        if not workspace or not is_execution_id(execution_id):
            raise Refusal("INVALID_REQUEST", "workspace must be set, and execution_id be a UUID in lower case")
        if request.HasField("start"):
            if (request.start.execution_id, request.start.workspace) != (execution_id, workspace):
                raise Refusal("INVALID_REQUEST", "the start is that of another execution")
            requeued = await self._failed_rows.requeue(workspace, execution_id, requeue_of(request))
            if requeued is not None:
                if requeued.is_first:
                    self._inbox.work_in(workspace)
                return queue_pb2.ResolveFailedResponse(
                    found=True,
                    resolved=requeued.is_first,
                    row=queued_of(requeued.row),
                    request_id_reused=requeued.is_reused,
                )
            row = None
        else:
            reviewer, notes = clean(request.reviewer), clean(request.notes)
            row = await self._failed_rows.discard(workspace, execution_id, seen_time(request), reviewer, notes)
        is_resolved = row is not None
        row = row or await self._failed_rows.find(workspace, execution_id)
        shown = None if row is None else queued_of(row)
        return queue_pb2.ResolveFailedResponse(found=row is not None, resolved=is_resolved, row=shown)

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

    async def WakeParked(self, request: Any, context: Any) -> queue_pb2.WakeParkedResponse:
        if not request.workspace:
            raise Refusal("INVALID_REQUEST", "workspace must be set")
        if len(request.leases) > IDS_MAX:
            raise Refusal("INVALID_REQUEST", f"a request has at most {IDS_MAX} leases")
        # No execution has an id of another form.
        leases = [(each.execution_id, each.epoch) for each in request.leases if is_execution_id(each.execution_id)]
        woken, held = await self._parked_rows.wake_parked(request.workspace, leases)
        self._inbox.requeued(woken)
        return queue_pb2.WakeParkedResponse(held_execution_ids=held)

    async def ConfigureWorkspace(self, request: Any, context: Any) -> queue_pb2.ConfigureWorkspaceResponse:
        if not request.workspace:
            raise Refusal("INVALID_REQUEST", "workspace must be set")
        limits = limits_of(request.limits)
        failed = await self._reads.configure(request.workspace, limits, request.closed)
        for execution_id in failed:
            log.error("error processing item", execution_id=execution_id, reason="WORKSPACE_CLOSED")
        self._inbox.limits_changed(request.workspace, limits)
        return queue_pb2.ConfigureWorkspaceResponse()
