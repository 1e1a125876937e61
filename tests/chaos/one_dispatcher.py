"""Talks to a chosen dispatcher as an api does.

An api sends its starts on the first stream that takes them, and its calls to the first replica that answers, and stays
with both. So chance decides which dispatcher hears anything, and a test that needs one dispatcher has to talk to it.
The dispatcher that grants an execution also hears of its end, its release and the messages that its holder has
journalled.
"""

import uuid

from services.chassis.identity.callers import ServiceCredential
from tests.support.stack import Stack
from windlass.api.v1 import resources_pb2
from windlass.coordinator.v1.commands_pb2 import ExecutionCommand
from windlass.dispatcher.v1 import queue_pb2, queue_pb2_grpc, sessions_pb2
from windlass.types.v1.start_pb2 import StartOrder

WORKSPACE = "default"
_NEWEST = """
SELECT v.version_id::text, v.version, w.executions_max, w.queued_max, w.revision
FROM api.workflow_versions v JOIN api.workspaces w USING (workspace)
WHERE workspace = %s AND v.workflow = %s ORDER BY v.version DESC LIMIT 1
"""


async def newest(stack: Stack, workflow: str) -> queue_pb2.EnqueueItem:
    """A start of the newest version without an id, and with the limits that api knows."""
    ((version_id, version, executions_max, queued_max, revision),) = await stack.rows(_NEWEST, WORKSPACE, workflow)
    return queue_pb2.EnqueueItem(
        start=StartOrder(
            workspace=WORKSPACE,
            workflow=workflow,
            version=version,
            version_id=version_id,
            input=b'{"n":42}',
            priority=3,
            trigger_type=resources_pb2.Execution.Trigger.MANUAL,
            caller="chaos",
        ),
        limits=queue_pb2.TenantLimits(executions_max=executions_max, queued_max=queued_max, revision=revision),
    )


class OneDispatcher:
    def __init__(self, stack: Stack, replica: int, call_seconds: float) -> None:
        self._call_seconds = call_seconds
        self._metadata = ServiceCredential.from_file(stack.service_secret_file(), "api").metadata
        channel = stack.channel("dispatcher", replica)
        self._enqueue = queue_pb2_grpc.EnqueueServiceStub(channel)
        self._queue = queue_pb2_grpc.QueueServiceStub(channel)

    async def start(self, item: queue_pb2.EnqueueItem) -> str:
        """Start another execution like this one. It is stored on return. Returns its id."""
        own = queue_pb2.EnqueueItem()
        own.CopyFrom(item)
        own.start.execution_id = str(uuid.uuid4())
        own.start.create_time.GetCurrentTime()
        call = self._enqueue.Enqueue(
            iter([queue_pb2.EnqueueRequest(items=[own])]), metadata=self._metadata, timeout=self._call_seconds
        )
        outcomes = [answer.outcome async for response in call for answer in response.answers]
        assert outcomes == [queue_pb2.EnqueueAnswer.QUEUED], outcomes
        return own.start.execution_id

    async def retry(self, execution_id: str, item: queue_pb2.EnqueueItem) -> None:
        """Send a retry of an execution that was started with this item."""
        command = ExecutionCommand(message_id=f"retry:{execution_id}", caller="chaos")
        command.retry.SetInParent()
        message = sessions_pb2.ExecutionMessage(
            message_id=command.message_id, execution_id=execution_id, command=command.SerializeToString()
        )
        message.create_time.GetCurrentTime()
        request = queue_pb2.DeliverRequest(workspace=WORKSPACE, message=message, start=item.start)
        request.start.execution_id = execution_id
        await self._queue.Deliver(request, metadata=self._metadata, timeout=self._call_seconds)

    async def resolve_failed(self, item: queue_pb2.EnqueueItem | None = None) -> None:
        """Decide about a row that is not there: requeue it if there is an item, otherwise discard it."""
        execution_id = str(uuid.uuid4())
        request = queue_pb2.ResolveFailedRequest(workspace=WORKSPACE, execution_id=execution_id)
        if item is not None:
            request.start.CopyFrom(item.start)
            request.start.execution_id = execution_id
        await self._queue.ResolveFailed(request, metadata=self._metadata, timeout=self._call_seconds)

    async def cancel(self, execution_id: str) -> None:
        message = sessions_pb2.ExecutionMessage(
            message_id=f"cancel:{execution_id}",
            execution_id=execution_id,
            cancel=sessions_pb2.ExecutionMessage.Cancel(reason="chaos", caller="chaos"),
        )
        message.create_time.GetCurrentTime()
        await self._queue.Deliver(
            queue_pb2.DeliverRequest(workspace=WORKSPACE, message=message),
            metadata=self._metadata,
            timeout=self._call_seconds,
        )
