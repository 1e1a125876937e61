"""People see what a run worked on, exactly as it was rendered, whatever the run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import json_format

from services.chassis.grpc.errors import RemoteError, remote_error
from tests.support.api import Client, output_of
from tests.support.command_line import windlass
from tests.support.probe import eventually
from tests.support.stack import Stack
from windlass.api.v1 import executions_pb2, resources_pb2, runs_pb2

Execution = resources_pb2.Execution
Run = resources_pb2.Run


@pytest_asyncio.fixture(loop_scope="session")
async def client(shared_stack: Stack) -> Client:
    """It is made inside the event loop, because gRPC uses the loop that it finds, and each test closes its own."""
    return Client(shared_stack)


async def worked_on(client: Client, run_id: str) -> dict[str, Any]:
    answer = await client.call(client.runs.GetRunInputs, runs_pb2.GetRunInputsRequest(run_id=run_id))
    return {"inputs": {}, "config": {}} | json_format.MessageToDict(answer)


async def refused(client: Client, run_id: str) -> RemoteError:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await worked_on(client, run_id)
    return remote_error(failure.value)


async def run_of(client: Client, execution: Any, node: str, **facts: Any) -> Any:
    """The newest run of the node for which these facts are true."""
    runs = await client.runs_of(execution.id)
    return [run for run in runs if run.node == node and all(getattr(run, key) == facts[key] for key in facts)][-1]


async def assert_outputs_are_inputs(client: Client, execution: Any) -> int:
    """The output of `transform@1` is its inputs, as they were rendered. Returns the number of its runs."""
    runs = [
        run for run in await client.runs_of(execution.id) if (run.module, run.state) == ("transform@1", Run.SUCCESS)
    ]
    for run in runs:
        assert (await worked_on(client, run.id))["inputs"] == await output_of(client, run.id), run.node
    return len(runs)


async def test_templates_saw_what_they_saw_then(client: Client) -> None:
    """Outputs of nodes, also of failed and skipped ones, the state of the workflow, and facts of the execution."""
    nodes: list[dict[str, Any]] = [
        {"id": "pay", "module": "fail@1", "config": {"type": "PERMANENT", "message": "no {{ input.what }}"}},
        {"id": "ship", "module": "transform@1", "inputs": {"by": "ship"}},
        {"id": "keep", "module": "state.set@1", "inputs": {"why": "{{ nodes.pay.error.message }}"}},
        {"id": "plain", "module": "transform@1", "inputs": {"plain": [1, {"a": None}]}},
        {
            "id": "end",
            "module": "transform@1",
            "inputs": {
                "states": ["{{ nodes.pay.state }}", "{{ nodes.ship.state }}"],
                "state": "{{ state.why }} in {{ state.region }}",
                "of": "{{ execution.workflow }} {{ execution.version }} {{ execution.create_time }}",
                "all": "{{ input }}",
                "shape": '{{ {"a": {"b": input.what}} }}',
            },
        },
        {"id": "later", "module": "state.set@1", "inputs": {"why": "something else"}},
        {"id": "choose", "module": "condition@1", "config": {"expression": "input.what == 'money'"}},
    ]
    edges = [
        {"from": "pay", "to": "ship"},
        {"from": "pay", "to": "keep", "when": "failure"},
        {"from": "ship", "to": "end", "when": "always"},
        {"from": "keep", "to": "end"},
        {"from": "keep", "to": "plain"},
        {"from": "end", "to": "later"},
        {"from": "later", "to": "choose"},
    ]
    more: dict[str, Any] = {
        "edges": edges,
        "initialState": {"region": "eu"},
        "output": {"end": "{{ nodes.end.output }}"},
    }
    nodes[4]["join"] = "ANY"
    await client.apply("saw", nodes, **more)
    execution = await client.run("saw", input={"what": "money", "secret": "x"})
    assert execution.state == Execution.SUCCESS, execution.error
    assert await assert_outputs_are_inputs(client, execution) == 3
    end = await worked_on(client, (await run_of(client, execution, "end")).id)
    assert end["inputs"]["states"] == ["FAILED", "SKIPPED"]
    assert end["inputs"]["state"] == "no money in eu"
    pay = await worked_on(client, (await run_of(client, execution, "pay")).id)
    assert pay == {"inputs": {}, "config": {"type": "PERMANENT", "message": "no money"}}
    choose = await worked_on(client, (await run_of(client, execution, "choose")).id)
    assert choose["config"] == {"expression": "input.what == 'money'"}, "the module evaluates it itself"
    keep = await worked_on(client, (await run_of(client, execution, "keep")).id)
    assert keep == {"inputs": {"why": "no money"}, "config": {}}
    passed_over = await run_of(client, execution, "ship")
    assert (await refused(client, passed_over.id)).reason == "INPUTS_NOT_FOUND"


async def test_items_and_turns_of_loops_each_have_their_own(client: Client) -> None:
    body = {
        "module": "transform@1",
        "inputs": {"item": "{{ item.text|length }}", "at": "{{ index }}", "of": "{{ input.n }}"},
    }
    loop = {"id": "each", "module": "for_each@1", "config": {"items": "{{ input.items * input.n }}", "body": body}}
    turns = {
        "id": "turns",
        "module": "repeat@1",
        "config": {
            "until": "index == 2",
            "maxIterations": 5,
            "body": {"module": "transform@1", "inputs": {"turn": "{{ index }}"}},
        },
    }
    await client.apply("looped", [loop, turns])
    small = await client.run("looped", input={"items": [{"text": "ab"}, {"text": "c"}], "n": 1})
    large = await client.run("looped", input={"items": [{"text": "ab" * 2_000}] * 40, "n": 2})
    assert (small.state, large.state) == (Execution.SUCCESS, Execution.SUCCESS)
    assert await assert_outputs_are_inputs(client, small) == 2 + 3
    for iteration in (1, 80):
        run = await run_of(client, large, "each", iteration=iteration)
        assert (await worked_on(client, run.id))["inputs"] == {"item": 4_000, "at": iteration - 1, "of": 2}
    loop_run = await run_of(client, small, "each", iteration=0)
    assert (await worked_on(client, loop_run.id))["config"] == {"items": [{"text": "ab"}, {"text": "c"}]}
    # Its list is in the output store.
    large_loop = await worked_on(client, (await run_of(client, large, "each", iteration=0)).id)
    assert large_loop == {"inputs": {}, "config": {"items": [{"text": "ab" * 2_000}] * 80}}


async def in_parts(client: Client, run_id: str) -> list[bytes]:
    request = runs_pb2.GetRunInputsJsonRequest(run_id=run_id)
    call = client.runs.GetRunInputsJson(request, metadata=client.metadata, timeout=60)
    return [answer.data async for answer in call]


async def test_large_outputs_are_read_again_and_large_inputs_come_in_parts(
    client: Client, shared_stack: Stack, tmp_path: Path
) -> None:
    nodes = [
        {
            "id": "large",
            "module": "transform@1",
            "inputs": {"t": "{{ input.t ~ input.t ~ input.t ~ input.t ~ input.t }}"},
        },
        {"id": "small", "module": "transform@1", "inputs": {"length": "{{ nodes.large.output.t|length }}"}},
    ]
    await client.apply("sized", nodes, edges=[{"from": "large", "to": "small"}])
    execution = await client.run("sized", input={"t": "x" * 250_000})
    small, large = [await run_of(client, execution, node) for node in ("small", "large")]
    assert (await worked_on(client, small.id))["inputs"] == {"length": 1_250_000}
    assert (await refused(client, large.id)).reason == "INPUTS_TOO_LARGE"
    parts = await in_parts(client, large.id)
    assert max(map(len, parts)) <= 256 * 1024
    whole = {"inputs": {"t": "x" * 1_250_000}, "config": {}}
    assert json.loads(b"".join(parts)) == whole
    assert json.loads(b"".join(await in_parts(client, small.id))) == await worked_on(client, small.id)
    file, home = tmp_path / "inputs.json", shared_stack.options.home
    written = await asyncio.to_thread(windlass, "inputs", large.id, "--output", file, "--home", home)
    assert (written.returncode, json.loads(file.read_bytes())) == (0, whole), written.stderr
    told = await asyncio.to_thread(windlass, "inputs", large.id, "--home", home)
    assert (told.returncode, "--output FILE" in told.stderr) == (1, True), told.stderr
    missing, none = f"{execution.id}.9", tmp_path / "none.json"
    failed = await asyncio.to_thread(windlass, "inputs", missing, "--output", none, "--home", home)
    assert (failed.returncode, "RUN_NOT_FOUND" in failed.stderr, none.exists()) == (1, True, False)
    shorter = await client.run("sized", input={"t": "x" * 150_000})
    assert len((await worked_on(client, (await run_of(client, shorter, "large")).id))["inputs"]["t"]) == 750_000


async def test_overrides_count_for_the_runs_that_had_them(client: Client) -> None:
    nodes: list[dict[str, Any]] = [
        {"id": "check", "module": "test.check@1", "inputs": {"n": "{{ input.n }}", "plain": "kept"}},
        {
            "id": "child",
            "module": "sub_workflow@1",
            "config": {"workflow": "doubled"},
            "inputs": {"n": "{{ input.n }}"},
        },
        {"id": "fixed", "module": "test.check@1", "inputs": {"n": 0, "plain": "kept"}},
    ]
    edges = [{"from": "check", "to": "child"}, {"from": "child", "to": "fixed"}]
    await client.apply("doubled", [{"id": "a", "module": "transform@1", "inputs": {"n": "{{ input.n * 2 }}"}}])
    await client.apply("overridden", nodes, edges=edges)
    failed = await client.run("overridden", input={"n": -1})
    assert (failed.state, failed.error.node) == (Execution.FAILED, "check")
    request = executions_pb2.RetryExecutionRequest(execution_id=failed.id, request_id="once")
    json_format.ParseDict({"check": {"n": 5}, "child": {"n": 6}, "fixed": {"n": 7}}, request.input_overrides)
    await client.call(client.executions.RetryExecution, request)
    execution = await client.end_of(failed.id)
    assert execution.state == Execution.SUCCESS, execution.error

    async def inputs(node: str, **facts: Any) -> Any:
        return (await worked_on(client, (await run_of(client, execution, node, **facts)).id))["inputs"]

    assert await inputs("check", generation=1) == {"n": -1, "plain": "kept"}
    assert await inputs("check", generation=2) == {"n": 5, "plain": "kept"}
    assert await inputs("child") == {"n": 6}
    assert await inputs("fixed") == {"n": 7, "plain": "kept"}


async def test_each_attempt_and_what_undoes_a_node_have_theirs(client: Client) -> None:
    undo = {"module": "test.undoes@1", "inputs": {"of": "{{ nodes.book.output.id }}", "why": "{{ error.message }}"}}
    nodes: list[dict[str, Any]] = [
        {"id": "book", "module": "transform@1", "inputs": {"id": "{{ input.id }}"}, "compensate": undo},
        {
            "id": "ship",
            "module": "fail@1",
            "config": {"type": "TRANSIENT", "message": "no truck for {{ nodes.book.output.id }}"},
            "retry": {"attempts": 2, "initialDelay": "10ms"},
        },
    ]
    await client.apply("undone", nodes, edges=[{"from": "book", "to": "ship"}])
    execution = await client.run("undone", input={"id": 7})
    assert execution.state == Execution.FAILED
    assert (await worked_on(client, (await run_of(client, execution, "book$undo")).id))["inputs"] == {
        "of": 7,
        "why": "no truck for 7",
    }
    for attempt in (1, 2):
        run = await run_of(client, execution, "ship", attempt=attempt)
        assert (await worked_on(client, run.id))["config"]["message"] == "no truck for 7"


async def test_a_run_that_is_still_under_way_has_its_inputs_too(client: Client) -> None:
    nodes: list[dict[str, Any]] = [
        {"id": "long", "module": "test.waits@1", "inputs": {"n": "{{ input.n + 1 }}"}},
        {"id": "nap", "module": "sleep@1", "config": {"duration": "{{ input.n }}h"}},
    ]
    await client.apply("waiting", nodes)
    execution = await client.start("waiting", input={"n": 1})

    async def both_are_under_way() -> bool:
        return [run.state for run in await client.runs_of(execution.id)] == [Run.RUNNING, Run.RUNNING]

    await eventually(both_are_under_way, 10, "both runs are under way")
    assert (await worked_on(client, (await run_of(client, execution, "long")).id))["inputs"] == {"n": 2}
    assert (await worked_on(client, (await run_of(client, execution, "nap")).id))["config"] == {"duration": "1h"}
    await client.cancel(execution.id)


async def test_inputs_that_could_not_be_rendered_or_must_not_be_kept_are_refused_with_the_reason(
    client: Client,
) -> None:
    nodes = [{"id": "a", "module": "transform@1", "inputs": {"n": "{{ input.n }}", "card": "{{ input.card }}"}}]
    await client.apply("open", nodes)
    failed = await client.run("open", input={"n": 1})
    broken = await refused(client, (await run_of(client, failed, "a")).id)
    assert (broken.reason, "input.card" in broken.message) == ("INPUTS_NOT_RENDERED", True)
    await client.apply("discreet", nodes, recordInputs=False)
    execution = await client.run("discreet", input={"n": 1, "card": "4111"})
    told = await refused(client, (await run_of(client, execution, "a")).id)
    assert (told.code, told.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "INPUTS_NOT_RECORDED")
    assert "4111" not in told.message


async def test_the_command_line_shows_them(client: Client, shared_stack: Stack) -> None:
    await client.apply("shown", [{"id": "a", "module": "transform@1", "inputs": {"n": "{{ input.n }}"}}])
    execution = await client.run("shown", input={"n": 3})
    run = await run_of(client, execution, "a")
    shown = await asyncio.to_thread(windlass, "inputs", run.id, "--home", shared_stack.options.home)
    assert (shown.returncode, json.loads(shown.stdout)) == (0, {"inputs": {"n": 3}, "config": {}}), shown.stderr
    missing = await asyncio.to_thread(windlass, "inputs", f"{execution.id}.9", "--home", shared_stack.options.home)
    assert (missing.returncode, "RUN_NOT_FOUND" in missing.stderr) == (1, True)


async def test_inputs_that_are_not_those_of_the_runner_are_not_shown(client: Client, shared_stack: Stack) -> None:
    """As if the templates had been rendered otherwise at that time."""
    await client.apply("hashed", [{"id": "a", "module": "transform@1", "inputs": {"n": "{{ input.n }}"}}])
    execution = await client.run("hashed", input={"n": 3})
    run = await run_of(client, execution, "a")
    assert (await worked_on(client, run.id))["inputs"] == {"n": 3}
    await shared_stack.rows(
        "UPDATE coordinator.runs SET inputs_hash = %s WHERE execution_id = %s RETURNING number", bytes(32), execution.id
    )
    assert (await refused(client, run.id)).reason == "INPUTS_NOT_RENDERED"


async def test_what_a_fork_has_taken_over_is_shown_by_its_origin(client: Client) -> None:
    nodes: list[dict[str, Any]] = [
        {"id": "first", "module": "transform@1", "inputs": {"n": "{{ input.n }}"}},
        {"id": "check", "module": "test.check@1", "inputs": {"n": "{{ nodes.first.output.n }}", "of": "{{ input.n }}"}},
    ]
    await client.apply("forked-inputs", nodes, edges=[{"from": "first", "to": "check"}])
    origin = await client.run("forked-inputs", input={"n": -1})
    request = executions_pb2.ForkExecutionRequest(execution_id=origin.id, from_node="check")
    request.input.update({"n": 5})
    fork = (await client.call(client.executions.ForkExecution, request)).execution
    await client.end_of(fork.id)
    assert (await worked_on(client, (await run_of(client, fork, "check")).id))["inputs"] == {"n": -1, "of": 5}
    told = await refused(client, (await run_of(client, fork, "first")).id)
    done = (await run_of(client, origin, "first")).id
    assert (told.reason, done in told.message) == ("INPUTS_NOT_FOUND", True)
    assert (await worked_on(client, done))["inputs"] == {"n": -1}
