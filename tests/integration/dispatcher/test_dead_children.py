"""A child that becomes a dead letter is told to its parent, whatever the reason."""

from __future__ import annotations

import uuid

import pytest

from tests.integration.dispatcher.parties import SECONDS, Api, Coordinator
from tests.integration.dispatcher.test_service import item
from tests.support.probe import until
from windlass.dispatcher.v1 import queue_pb2


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
