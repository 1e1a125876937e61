"""What a person can do with an execution: pause it, let it go on, and have failed work done again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.chassis.grpc.errors import remote_error
from tests.support.api import Client, new_workspace
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import executions_pb2 as pb
from windlass.api.v1 import resources_pb2

Execution = resources_pb2.Execution
State = resources_pb2.Execution.State
FAILURE = {"type": "BAD", "message": "always"}


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


async def test_a_pause_is_shown_while_its_execution_is_queued(shared_stack: Stack) -> None:
    client = await new_workspace(shared_stack, "full", executions_max=1)
    await client.apply("endless", [{"id": "a", "module": "test.waits@1"}])
    await client.apply("quick", [{"id": "a", "module": "noop@1"}])
    first = await client.start("endless")
    await has_state(client, first.id, Execution.RUNNING)
    second = await client.start("quick")
    assert not second.HasField("pause")
    answered = await pause(client, second.id)
    listed = pb.ListExecutionsRequest(filter='workflow = "quick"')
    (in_list,) = (await client.call(client.executions.ListExecutions, listed)).executions
    for shown in (answered, await client.get(second.id), in_list):
        assert shown.state == Execution.PENDING
        assert (shown.pause.caller, shown.pause.reason) == ("of the test", "look first")
        assert shown.pause.HasField("time")
    resumed = await resume(client, second.id)
    assert (resumed.state, resumed.HasField("pause")) == (Execution.PENDING, False)
    await client.cancel(first.id)
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


async def retry(client: Client, execution_id: str, **fields: Any) -> Execution:
    request = pb.RetryExecutionRequest(execution_id=execution_id)
    json_format.ParseDict(fields, request)
    return (await client.call(client.executions.RetryExecution, request)).execution  # type: ignore[no-any-return]


async def generations(client: Client, execution_id: str) -> list[tuple[str, int, str]]:
    runs = await client.runs_of(execution_id)
    return [(run.node, run.generation, resources_pb2.Run.State.Name(run.state)) for run in runs]


async def test_a_failed_execution_is_retried_with_other_inputs(client: Client) -> None:
    """Only the failed node and what depends on it are done again; the new work has another effect key."""
    nodes = [
        {"id": "good", "module": "transform@1", "inputs": {"n": "{{ input.n }}"}},
        {"id": "check", "module": "test.check@1", "inputs": {"n": "{{ nodes.good.output.n }}", "plain": "kept"}},
        {"id": "after", "module": "transform@1", "inputs": {"seen": "{{ nodes.check.output }}"}},
    ]
    edges = [{"from": "good", "to": "check"}, {"from": "check", "to": "after"}]
    await client.apply("checked", nodes, edges=edges, timeout="60s")
    given = Struct()
    given.update({"n": -1})
    failed = await client.run("checked", input=given)
    assert (failed.state, failed.error.node) == (Execution.FAILED, "check")
    reopened = await retry(client, failed.id, inputOverrides={"check": {"n": 5}}, requestId="once")
    assert reopened.state in (Execution.RUNNING, Execution.SUCCESS)
    assert not reopened.HasField("error")
    assert reopened.deadline_time.ToNanoseconds() > failed.deadline_time.ToNanoseconds()
    ended = await client.end_of(failed.id)
    assert ended.state == Execution.SUCCESS
    assert json_format.MessageToDict(ended.output) == {"after": {"seen": {"n": 5, "plain": "kept"}}}
    assert await generations(client, failed.id) == [
        ("good", 1, "SUCCESS"), ("check", 1, "FAILED"), ("check", 2, "SUCCESS"), ("after", 2, "SUCCESS"),
    ]  # fmt: skip
    keys = [run.effect_key for run in await client.runs_of(failed.id) if run.node == "check"]
    assert len(set(keys)) == 2
    again = await retry(client, failed.id, inputOverrides={"check": {"n": 5}}, requestId="once")
    assert (again.state, again.last_seq) == (Execution.SUCCESS, ended.last_seq), "a repeat changes nothing"


async def test_ten_retries_at_once_reopen_once(client: Client) -> None:
    await client.apply("bad", [{"id": "bad", "module": "fail@1", "retry": {"attempts": 1}, "config": FAILURE}])
    failed = await client.run("bad")
    assert failed.state == Execution.FAILED
    await asyncio.gather(*(retry(client, failed.id, requestId="the same") for _ in range(10)))
    assert (await client.end_of(failed.id)).state == Execution.FAILED
    assert [generation for _, generation, _ in await generations(client, failed.id)] == [1, 2]


async def test_a_cancelled_execution_goes_on_where_it_was(client: Client) -> None:
    execution = await client.start("two-steps")
    await has_state(client, execution.id, Execution.RUNNING)
    await client.cancel(execution.id)
    assert (await client.end_of(execution.id)).state == Execution.CANCELLED
    await retry(client, execution.id)
    assert (await client.end_of(execution.id)).state == Execution.SUCCESS


async def test_a_successful_execution_is_done_again_from_a_node(client: Client) -> None:
    done = await client.run("two-steps")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await retry(client, done.id)
    assert remote_error(refused.value).reason == "EXECUTION_NOT_FAILED"
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await retry(client, done.id, fromNode="nobody")
    assert remote_error(unknown.value).reason == "NODE_NOT_FOUND"
    await retry(client, done.id, fromNode="after")
    ended = await client.end_of(done.id)
    assert ended.state == Execution.SUCCESS
    assert [node for node, _, _ in await generations(client, done.id)] == ["slow", "after", "after"]
