"""What a person can do with an execution that goes on: pause it and let it go on."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio

from services.chassis.grpc.errors import remote_error
from tests.support.api import Client, new_workspace
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import executions_pb2 as pb
from windlass.api.v1 import resources_pb2

Execution = resources_pb2.Execution
State = resources_pb2.Execution.State


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(shared_stack: Stack) -> Client:
    made = Client(shared_stack)
    delay = {"id": "slow", "module": "delay@1", "config": {"duration": "500ms"}, "idempotent": True}
    edges = [{"from": "slow", "to": "after"}]
    await made.apply("two-steps", [delay, {"id": "after", "module": "noop@1"}], edges=edges)
    await made.apply("short-sleep", [{"id": "nap", "module": "sleep@1", "config": {"duration": "1s"}}])
    await made.apply("long-sleep", [{"id": "nap", "module": "sleep@1", "config": {"duration": "1h"}}])
    return made


async def pause(client: Client, execution_id: str) -> Execution:
    request = pb.PauseExecutionRequest(execution_id=execution_id, reason="look first")
    return (await client.call(client.executions.PauseExecution, request)).execution  # type: ignore[no-any-return]


async def resume(client: Client, execution_id: str) -> Execution:
    request = pb.ResumeExecutionRequest(execution_id=execution_id)
    return (await client.call(client.executions.ResumeExecution, request)).execution  # type: ignore[no-any-return]


async def has_state(client: Client, execution_id: str, *states: "State.ValueType") -> Execution:
    async def look() -> Any:
        found = await client.get(execution_id)
        return found if found.state in states else None

    return await eventually(look, 20.0, "the execution to have another state")


async def reason_of(refused: Awaitable[Any]) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await refused
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    return remote_error(error.value).reason


async def test_a_paused_execution_lets_its_run_finish_and_begins_no_other(client: Client) -> None:
    execution = await client.start("two-steps")
    await has_state(client, execution.id, Execution.RUNNING)
    paused = await pause(client, execution.id)
    assert (paused.state, paused.pause.reason) == (Execution.PAUSED, "look first")
    assert paused.pause.caller
    assert paused.pause.HasField("time")

    async def slow_is_done() -> bool:
        runs = await client.runs_of(execution.id)
        return [run.state for run in runs if run.node == "slow"] == [resources_pb2.Run.SUCCESS]

    await eventually(slow_is_done, 20.0, "the run that was under way")
    assert [run.node for run in await client.runs_of(execution.id)] == ["slow"]
    again = await pause(client, execution.id)
    assert (again.state, again.last_seq) == (Execution.PAUSED, (await client.get(execution.id)).last_seq)
    resumed = await resume(client, execution.id)
    assert not resumed.HasField("pause")
    assert (await client.end_of(execution.id)).state == Execution.SUCCESS


@pytest.mark.parametrize("workflow", ["short-sleep", "long-sleep"])
async def test_a_sleep_is_paused_and_goes_on(client: Client, workflow: str) -> None:
    """The long one is parked, and the command wakes it."""
    execution = await client.start(workflow)
    await has_state(client, execution.id, Execution.WAITING)
    assert (await pause(client, execution.id)).state == Execution.PAUSED
    resumed = await resume(client, execution.id)
    assert resumed.state in (Execution.WAITING, Execution.SUCCESS)
    if workflow == "short-sleep":
        assert (await client.end_of(execution.id)).state == Execution.SUCCESS
    else:
        await client.cancel(execution.id)


async def test_a_queued_execution_is_paused_before_anything_begins(shared_stack: Stack) -> None:
    client = await new_workspace(shared_stack, "one-slot", executions_max=1)
    await client.apply("slow", [{"id": "a", "module": "delay@1", "config": {"duration": "2s"}}])
    first = await client.start("slow")
    await has_state(client, first.id, Execution.RUNNING)
    second = await client.start("slow")
    assert (await pause(client, second.id)).state in (Execution.PENDING, Execution.PAUSED)
    await has_state(client, second.id, Execution.PAUSED)
    assert await client.runs_of(second.id) == []
    third = await client.run("slow")
    assert third.state == Execution.SUCCESS, "the paused one holds no slot"
    await resume(client, second.id)
    assert (await client.end_of(second.id)).state == Execution.SUCCESS


async def test_commands_that_do_not_fit_are_refused(client: Client) -> None:
    execution = await client.start("long-sleep")
    await has_state(client, execution.id, Execution.WAITING)
    assert await reason_of(resume(client, execution.id)) == "EXECUTION_NOT_PAUSED"
    await pause(client, execution.id)
    await client.cancel(execution.id)
    assert (await client.end_of(execution.id)).state == Execution.CANCELLED
    commands: list[Callable[[Client, str], Awaitable[Execution]]] = [pause, resume]
    for command in commands:
        assert await reason_of(command(client, execution.id)) == "EXECUTION_FINAL"
