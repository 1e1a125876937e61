"""Eight dispatchers never admit a sixth execution to five slots. Every commit is checked, even while one dies."""

import asyncio

import grpc
import pytest

from tests.chaos.one_dispatcher import WORKSPACE, OneDispatcher, newest
from tests.support.api import Client
from tests.support.probe import until
from tests.support.slots import claimers, most_ever_going, waiting, watch_slots
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import executions_pb2, resources_pb2, workspaces_pb2
from windlass.api.v1.workspaces_pb2_grpc import WorkspaceServiceStub

DISPATCHERS = 8
SLOTS = 5
# This number is sent to each dispatcher.
STARTS = 25
CALL_SECONDS = 20.0
END_SECONDS = 90.0


async def limit(stack: Stack, executions_max: int) -> None:
    """Set the limit of the workspace that all of them start in."""
    workspaces, system = WorkspaceServiceStub(stack.channel()), stack.metadata("system")
    found = await workspaces.GetWorkspace(
        workspaces_pb2.GetWorkspaceRequest(workspace=WORKSPACE), metadata=system, timeout=CALL_SECONDS
    )
    found.workspace.limits.executions_max = executions_max
    request = workspaces_pb2.UpdateWorkspaceRequest(workspace=found.workspace, etag=found.workspace.etag)
    request.update_mask.paths.append("limits.executions_max")
    await workspaces.UpdateWorkspace(request, metadata=system, timeout=CALL_SECONDS)


async def start_all(stack: Stack, replica: int, workflow: str) -> None:
    """Start them side by side at one dispatcher; a start that it does not answer is sent to the next one."""
    item = await newest(stack, workflow)

    async def start_one() -> None:
        for place in range(DISPATCHERS):
            asked = OneDispatcher(stack, (replica + place) % DISPATCHERS, CALL_SECONDS)
            try:
                await asked.start(item)
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
            else:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(STARTS):
            group.create_task(start_one())


@pytest.mark.chaos
async def test_eight_dispatchers_never_let_six_of_five_slots_go() -> None:
    async with running_stack(dispatchers=DISPATCHERS) as stack:
        client = Client(stack)
        await client.apply("brief", [{"id": "a", "module": "noop@1"}, {"id": "b", "module": "noop@1"}])
        await limit(stack, SLOTS)
        url = stack.superuser_url()
        watch_slots(url)
        async with asyncio.TaskGroup() as group:
            for replica in range(DISPATCHERS):
                group.create_task(start_all(stack, replica, "brief"))
            killed = stack.kill("dispatcher", DISPATCHERS - 1)
        await until(lambda: waiting(url) == 0, END_SECONDS, "all to have ended")
        await stack.ready_again("dispatcher", DISPATCHERS - 1, killed)
        # The dispatchers did contend: the limit was reached, and more than one of them took slots.
        assert most_ever_going(url) == SLOTS
        assert claimers(url) > 1
        request = executions_pb2.ListExecutionsRequest(filter="state = SUCCESS", page_size=1_000)
        ended = await client.call(client.executions.ListExecutions, request)
        assert len(ended.executions) >= DISPATCHERS * STARTS
        assert {each.state for each in ended.executions} == {resources_pb2.Execution.SUCCESS}
