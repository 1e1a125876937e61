"""A fork is a new execution that takes over what another one has done well."""

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import json_format

from services.chassis.grpc.errors import RemoteError, remote_error
from tests.support.api import Client, new_workspace, output_of
from tests.support.command_line import windlass
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import executions_pb2 as pb
from windlass.api.v1 import resources_pb2

Execution = resources_pb2.Execution
FIRST = {"id": "first", "module": "transform@1", "inputs": {"n": "{{ input.n }}", "of": "{{ execution.id }}"}}
SET = {"id": "set", "module": "state.set@1", "inputs": {"region": "eu"}}
SEEN = {"of": "{{ nodes.first.output.of }}", "in": "{{ state.region }}"}
LAST = {"id": "last", "module": "transform@1", "inputs": SEEN}
EDGES = [{"from": "first", "to": "set"}, {"from": "set", "to": "second"}, {"from": "second", "to": "last"}]


def second(module: str, **config: Any) -> dict[str, Any]:
    return {"id": "second", "module": module, "config": config, "retry": {"attempts": 1}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(shared_stack: Stack) -> Client:
    made = Client(shared_stack)
    bad = second("fail@1", type="BAD", message="always")
    await made.apply("forked", [FIRST, SET, bad, LAST], edges=EDGES, inputSchema={"required": ["n"]})
    await made.apply("forked", [FIRST, SET, second("noop@1"), LAST], edges=EDGES, inputSchema={"required": ["n"]})
    return made


async def fork(client: Client, execution_id: str, **fields: Any) -> pb.ForkExecutionResponse:
    request = pb.ForkExecutionRequest(execution_id=execution_id)
    json_format.ParseDict(fields, request)
    return await client.call(client.executions.ForkExecution, request)  # type: ignore[no-any-return]


async def failed(client: Client, n: int = 7) -> Execution:
    request = pb.StartExecutionRequest(workflow="forked", version=1, labels={"team": "a"}, priority=5)
    request.input.update({"n": n})
    request.wait.FromSeconds(30)
    answer = await client.call(client.executions.StartExecution, request)
    assert answer.execution.state == Execution.FAILED
    return answer.execution  # type: ignore[no-any-return]


async def types_of(client: Client, execution_id: str) -> list[tuple[str, str]]:
    answer = await client.call(client.executions.ListEvents, pb.ListEventsRequest(execution_id=execution_id))
    return [(event.type, event.node) for event in answer.events]


async def refusal_of(refused: Awaitable[Any]) -> RemoteError:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await refused
    return remote_error(error.value)


async def test_a_fork_with_a_version_that_is_mended_goes_on_where_its_origin_failed(client: Client) -> None:
    origin = await failed(client)
    forked = (await fork(client, origin.id, version=2)).execution
    assert (forked.origin_execution_id, forked.version, forked.priority) == (origin.id, 2, 5)
    assert (dict(forked.labels), forked.input["n"]) == ({"team": "a"}, 7)
    ended = await client.end_of(forked.id)
    assert (ended.state, ended.origin_execution_id) == (Execution.SUCCESS, origin.id)
    assert json_format.MessageToDict(ended.output) == {"last": {"of": origin.id, "in": "eu"}}
    found = await types_of(client, forked.id)
    assert found[:3] == [("ExecutionStarted", ""), ("WorkTakenOver", "first"), ("WorkTakenOver", "set")]
    assert [node for kind, node in found if kind == "RunLeased"] == ["second", "last"]
    runs = await client.runs_of(forked.id)
    assert [(run.node, run.attempt, run.runner != "") for run in runs] == [
        ("first", 0, False), ("set", 0, False), ("second", 1, True), ("last", 1, True),
    ]  # fmt: skip
    assert await output_of(client, runs[0].id) == {"n": 7, "of": origin.id}
    assert list(ended.summary.succeeded) == ["first", "set", "second", "last"]
    assert (await client.get(origin.id)).state == Execution.FAILED


async def test_the_forks_of_an_execution_are_listed(client: Client) -> None:
    origin = await failed(client)
    forks = [(await fork(client, origin.id, version=2)).execution.id for _ in range(2)]
    listing = pb.ListExecutionsRequest(filter=f'origin_execution_id = "{origin.id}"', order_by="create_time")
    found = (await client.call(client.executions.ListExecutions, listing)).executions
    assert [each.id for each in found] == forks


async def test_a_fork_of_a_success_begins_at_the_node_that_is_named_or_at_the_beginning(client: Client) -> None:
    origin = await client.end_of((await fork(client, (await failed(client)).id, version=2)).execution.id)
    assert origin.state == Execution.SUCCESS
    again = await client.end_of((await fork(client, origin.id)).execution.id)
    assert "WorkTakenOver" not in [kind for kind, _ in await types_of(client, again.id)]
    last = await client.end_of((await fork(client, origin.id, fromNode="last")).execution.id)
    assert [node for kind, node in await types_of(client, last.id) if kind == "RunLeased"] == ["last"]
    assert (again.state, last.state) == (Execution.SUCCESS, Execution.SUCCESS)


async def test_with_another_input_nothing_is_taken_over_unless_a_node_is_named(client: Client) -> None:
    origin = await failed(client)
    anew = await client.end_of((await fork(client, origin.id, version=2, input={"n": 8})).execution.id)
    assert "WorkTakenOver" not in [kind for kind, _ in await types_of(client, anew.id)]
    assert anew.input["n"] == 8
    named = (await fork(client, origin.id, version=2, input={"n": 8}, fromNode="second")).execution
    ended = await client.end_of(named.id)
    assert json_format.MessageToDict(ended.output)["last"]["of"] == origin.id
    mismatch = await refusal_of(fork(client, origin.id, input={"m": 8}))
    assert mismatch.reason == "INPUT_MISMATCH"


async def test_an_execution_that_goes_on_is_forked_with_what_it_has_done_so_far(client: Client) -> None:
    nap = {"id": "nap", "module": "sleep@1", "config": {"duration": "1h"}}
    await client.apply("napping", [FIRST, nap], edges=[{"from": "first", "to": "nap"}])
    request = pb.StartExecutionRequest(workflow="napping")
    request.input.update({"n": 1})
    origin = (await client.call(client.executions.StartExecution, request)).execution

    async def naps() -> bool:
        return (await client.get(origin.id)).state == Execution.WAITING

    await eventually(naps, 20.0, "the sleep")
    forked = (await fork(client, origin.id)).execution

    async def is_forked() -> list[tuple[str, str]]:
        return await types_of(client, forked.id)

    found = await eventually(is_forked, 20.0, "the start of the fork")
    assert found[1] == ("WorkTakenOver", "first")
    assert (await client.get(origin.id)).state == Execution.WAITING
    for each in (origin, forked):
        await client.cancel(each.id)


async def test_a_fork_of_a_queued_execution_takes_over_nothing(shared_stack: Stack) -> None:
    client = await new_workspace(shared_stack, "one-slot-for-forks", executions_max=1)
    await client.apply("slow", [{"id": "a", "module": "delay@1", "config": {"duration": "1s"}}])
    await client.start("slow")
    queued = await client.start("slow")
    forked = (await fork(client, queued.id)).execution
    assert (forked.state, forked.origin_execution_id) == (Execution.PENDING, queued.id)
    assert (await client.end_of(forked.id)).state == Execution.SUCCESS


async def test_ten_equal_requests_at_once_make_one_fork(client: Client) -> None:
    origin = await failed(client)
    answers = await asyncio.gather(*(fork(client, origin.id, version=2, requestId=origin.id) for _ in range(10)))
    assert len({answer.execution.id for answer in answers}) == 1
    assert [answer.existing for answer in answers].count(False) == 1
    reused = await refusal_of(fork(client, origin.id, requestId=origin.id))
    assert reused.reason == "REQUEST_ID_REUSED"


async def test_a_fork_that_does_not_fit_is_refused(client: Client, shared_stack: Stack) -> None:
    origin = await failed(client)
    assert (await refusal_of(fork(client, origin.id, fromNode="nobody"))).reason == "NODE_NOT_FOUND"
    assert (await refusal_of(fork(client, origin.id, version=99))).reason == "VERSION_NOT_FOUND"
    assert (await refusal_of(fork(client, "01a1ef02-cd5c-7fc1-ac68-79b46e7a0574"))).reason == "EXECUTION_NOT_FOUND"
    others = await new_workspace(shared_stack, "other-forks", executions_max=5)
    assert (await refusal_of(fork(others, origin.id))).reason == "EXECUTION_NOT_FOUND"


async def test_large_outputs_are_taken_over(client: Client) -> None:
    large = {"id": "first", "module": "transform@1", "inputs": {"t": "{{ input.t ~ input.t }}"}}
    sizes = {"id": "last", "module": "transform@1", "inputs": {"length": "{{ nodes.first.output.t|length }}"}}
    await client.apply("large-forks", [large, sizes], edges=[{"from": "first", "to": "last"}])
    origin = await client.run("large-forks", input={"t": "x" * 200_000})
    ended = await client.end_of((await fork(client, origin.id, fromNode="last")).execution.id)
    assert json_format.MessageToDict(ended.output) == {"last": {"length": 400_000.0}}
    (taken, _) = await client.runs_of(ended.id)
    assert await output_of(client, taken.id) == {"t": "x" * 400_000}


async def test_the_command_line_forks_one_or_all_that_a_filter_finds(client: Client, shared_stack: Stack) -> None:
    origin = await failed(client)
    home = ("--home", str(shared_stack.options.home))
    one = ("fork", origin.id, "--version", "2", "--from-node", "second", "--request-id", f"cli-{origin.id}", *home)
    shown = await asyncio.to_thread(windlass, *one)
    assert shown.stdout.strip().endswith(f"PENDING, fork of {origin.id}"), shown.stderr
    again = await asyncio.to_thread(windlass, *one, "--json")
    forked = json.loads(again.stdout)
    assert (forked["originExecutionId"], forked["id"]) == (origin.id, shown.stdout.split()[0])
    assert (await client.end_of(forked["id"])).state == Execution.SUCCESS
    got = await asyncio.to_thread(windlass, "get", forked["id"], *home)
    assert f"fork of    {origin.id}" in got.stdout
    chosen = ("--filter", f'origin_execution_id = "{origin.id}"')
    dry = await asyncio.to_thread(windlass, "fork", *chosen, "--dry-run", *home)
    assert dry.stdout.split() == [forked["id"]]
    both = await asyncio.to_thread(windlass, "fork", *chosen, "--request-id", "x", *home)
    assert both.returncode == 2
    assert (await asyncio.to_thread(windlass, "fork", *chosen, *home)).stdout.count(f"fork of {forked['id']}") == 1
