"""A child that becomes a dead letter is told to its parent, whatever the reason."""

from __future__ import annotations

import uuid

import pytest

from tests.integration.dispatcher.parties import SECONDS, Api, Coordinator, channels_of
from tests.integration.dispatcher.test_service import item
from tests.support.probe import until
from windlass.dispatcher.v1 import queue_pb2, queue_pb2_grpc, sessions_pb2


@pytest.mark.parametrize("cause", ["released for good", "workspace closed"])
async def test_parent_is_told_of_a_child_that_became_a_dead_letter(address: str, api: Api, cause: str) -> None:
    workspace = f"family-{uuid.uuid4().hex[:8]}"
    async with Coordinator(address) as coordinator:
        parent = await coordinator.take(api, item(workspace, executions_max=1 if cause == "workspace closed" else 2))
        child = item(workspace, executions_max=1 if cause == "workspace closed" else 2)
        child.start.parent_execution_id = parent.start.execution_id
        await api.enqueue(child)
        if cause == "released for good":
            _, grant = await coordinator.granted(2)
            coordinator.release(grant, permanent=True, reason="DEFINITION_CORRUPT", message="damaged")
        else:
            limits = queue_pb2.TenantLimits(executions_max=1, queued_max=100, revision=99)
            request = queue_pb2.ConfigureWorkspaceRequest(workspace=workspace, limits=limits, closed=True)
            await api.queue.ConfigureWorkspace(request)
        await until(lambda: coordinator.messages, SECONDS, "the message to the parent")
        message = coordinator.messages[0]
        assert message.execution_id == parent.start.execution_id
        ended = message.child_ended
        reason = "DEFINITION_CORRUPT" if cause == "released for good" else "WORKSPACE_CLOSED"
        assert (ended.child_execution_id, ended.given_up.reason) == (child.start.execution_id, reason)
        coordinator.acknowledge_messages(message.message_id)
        await coordinator.finished(parent)


async def test_parent_that_is_parked_is_woken_by_a_dead_child(address: str, api: Api) -> None:
    workspace = f"family-{uuid.uuid4().hex[:8]}"
    async with Coordinator(address) as coordinator:
        parent = await coordinator.take(api, item(workspace, executions_max=1))
        coordinator.park(parent)
        await coordinator.reported()
        child = item(workspace, executions_max=1)
        child.start.parent_execution_id = parent.start.execution_id
        await api.enqueue(child)
        _, grant = await coordinator.granted(2)
        coordinator.release(grant, permanent=True, reason="DEFINITION_CORRUPT")
        woken = (await coordinator.granted(3))[2]
        assert woken.start.execution_id == parent.start.execution_id
        (message,) = woken.messages
        assert message.child_ended.child_execution_id == child.start.execution_id
        coordinator.acknowledge_messages(message.message_id)
        await coordinator.finished(woken)


def end_of_child(parent: str, child: str) -> sessions_pb2.ExecutionMessage:
    ended = sessions_pb2.ExecutionMessage.ChildEnded(child_execution_id=child, outcome=b"how it ended")
    return sessions_pb2.ExecutionMessage(message_id=f"child:{child}:9", execution_id=parent, child_ended=ended)


async def dead_parent(coordinator: Coordinator, api: Api, workspace: str) -> queue_pb2.EnqueueItem:
    """An execution that its coordinator could not go on with."""
    parent = item(workspace, executions_max=1)
    grant = await coordinator.take(api, parent)
    coordinator.release(grant, permanent=True, begun=True, reason="JOURNAL_CORRUPT", message="damaged")
    await coordinator.reported()
    return parent


async def deliver(address: str, workspace: str, message: sessions_pb2.ExecutionMessage) -> bool:
    """As the coordinator of the child does it. False: the child has nobody left to tell."""
    queue = queue_pb2_grpc.QueueServiceStub(channels_of("coordinator").get(address))
    return bool((await queue.Deliver(queue_pb2.DeliverRequest(message=message, workspace=workspace))).found)


async def test_parent_that_is_a_dead_letter_hears_of_its_child_when_it_is_requeued(address: str, api: Api) -> None:
    workspace, child = f"family-{uuid.uuid4().hex[:8]}", item("any", executions_max=1).start.execution_id
    async with Coordinator(address) as coordinator:
        parent = await dead_parent(coordinator, api, workspace)
        message = end_of_child(parent.start.execution_id, child)
        # The child may tell it twice.
        assert [await deliver(address, workspace, message) for _ in range(2)] == [True, True]
        assert len(coordinator.grants) == 1
        request = queue_pb2.ResolveFailedRequest(
            workspace=workspace, execution_id=parent.start.execution_id, start=parent.start
        )
        assert (await api.queue.ResolveFailed(request)).resolved
        again = (await coordinator.granted(2))[1]
        assert [each.message_id for each in again.messages] == [message.message_id]
        assert again.messages[0].child_ended == message.child_ended
        coordinator.acknowledge_messages(message.message_id)
        await coordinator.finished(again)


async def test_parent_that_a_person_has_discarded_is_told_nothing(address: str, api: Api) -> None:
    workspace, child = f"family-{uuid.uuid4().hex[:8]}", item("any", executions_max=1).start.execution_id
    async with Coordinator(address) as coordinator:
        parent = await dead_parent(coordinator, api, workspace)
        request = queue_pb2.ResolveFailedRequest(workspace=workspace, execution_id=parent.start.execution_id)
        assert (await api.queue.ResolveFailed(request)).resolved
        assert not await deliver(address, workspace, end_of_child(parent.start.execution_id, child))


async def test_a_cancel_is_not_kept_for_a_dead_letter(address: str, api: Api) -> None:
    workspace = f"family-{uuid.uuid4().hex[:8]}"
    async with Coordinator(address) as coordinator:
        parent = await dead_parent(coordinator, api, workspace)
        cancel = sessions_pb2.ExecutionMessage(message_id=str(uuid.uuid4()), execution_id=parent.start.execution_id)
        cancel.cancel.reason = "enough"
        assert not await deliver(address, workspace, cancel)
