"""The spans of all four services make one story of an execution. They are received as any collector receives them."""

import asyncio
import functools
import re
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

import pytest
import pytest_asyncio

from tests.support.api import Client, new_workspace
from tests.support.otlp import EVERY_HOP, ONE_STEP_TREE, Collector, Trace
from tests.support.probe import eventually, some
from tests.support.stack import Stack, running_stack
from windlass.api.v1 import resources_pb2, runs_pb2

STATE = resources_pb2.Execution
RUNNER_CONCURRENCY = 10
ONE_NODE = [{"id": "only", "module": "noop@1"}]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack(spans: Collector) -> AsyncIterator[Stack]:
    async with running_stack(
        dispatchers=2, coordinators=2, otlp_endpoint=spans.endpoint, allow_net=["127.0.0.1"]
    ) as made:
        # The stack is up once its runner can work for one coordinator. At another one an execution would wait for it.
        for replica in range(2):
            await eventually(functools.partial(has_runner, made, replica), 20.0, "the runner at each coordinator")
        yield made


async def has_runner(stack: Stack, replica: int) -> bool:
    return "\ncoordinator_runner_sessions 1.0\n" in await stack.metrics("coordinator", replica)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(stack: Stack) -> Client:
    made = Client(stack)
    await made.apply("traced", ONE_NODE)
    return made


async def traced(
    client: Client, spans: Collector, name: str, nodes: list[dict[str, Any]], *, count: int = 1, **more: Any
) -> tuple[resources_pb2.Execution, Trace]:
    """An execution of these nodes, and its trace once it has this number of spans."""
    await client.apply(name, nodes, **more)
    execution = await client.run(name)
    return execution, await spans.trace(execution.trace_id, names=EVERY_HOP, count=count)


async def test_every_hop_of_an_execution_is_in_one_connected_trace(client: Client, spans: Collector) -> None:
    execution = await client.run("traced")
    assert execution.state == STATE.SUCCESS
    trace = await spans.trace(execution.trace_id, names=EVERY_HOP)
    assert trace.shape() == ONE_STEP_TREE, str(trace)
    assert len(trace.spans) == len(EVERY_HOP), str(trace)
    assert not [span.name for span in trace.spans if span.is_error]
    # They follow each other in time.
    wait, grant = trace.one("dispatcher.wait"), trace.one("dispatcher.grant")
    lease, execute = trace.one("run.lease"), trace.one("run.execute")
    starts = [trace.one("api.StartExecution").start, wait.start, grant.start, lease.start, execute.start]
    assert starts == sorted(starts), str(trace)
    assert wait.end == grant.start
    assert lease.end <= trace.one("coordinator.complete").end


async def test_spans_name_their_service_and_what_they_are_about(client: Client, spans: Collector) -> None:
    execution = await client.run("traced")
    (run,) = await client.runs_of(execution.id)
    assert re.fullmatch("[0-9a-f]{32}", execution.trace_id)
    assert execution.trace_id == run.trace_id == (await client.get(execution.id)).trace_id
    trace = await spans.trace(execution.trace_id, names=EVERY_HOP)
    services = {span.name.split(".")[0]: span.service for span in trace.spans if span.name != "run.execute"}
    assert services == {
        "api": "api", "dispatcher": "dispatcher", "coordinator": "coordinator", "run": "coordinator",
    }  # fmt: skip
    execute = trace.one("run.execute")
    assert execute.service == "runner"
    assert {span.version for span in trace.spans} == {version("windlass")}
    wanted = {
        "run.id": run.id, "execution.id": execution.id, "task.id": "only", "attempt": 1,
        "workspace": "default", "workflow": "traced",
    }  # fmt: skip
    for span in (execute, trace.one("run.lease")):
        assert wanted.items() <= span.attributes.items(), span
    for span in trace.spans:
        assert span.attributes["execution.id"] == execution.id, span.name


async def test_retries_are_spans_with_the_backoff_between_them(client: Client, spans: Collector) -> None:
    config = {"type": "TRANSIENT", "message": "not yet", "untilAttempt": 3}
    retry = {"attempts": 3, "initialDelay": "0.05s", "factor": 1}
    nodes = [{"id": "flaky", "module": "fail@1", "config": config, "retry": retry}]
    # The three attempts add a lease and an execution each, and the waits between them two.
    _, trace = await traced(client, spans, "retried", nodes, count=len(EVERY_HOP) + 2 * 2 + 2)
    attempts = trace.all("run.execute")
    assert [span.attributes["attempt"] for span in attempts] == [1, 2, 3]
    assert [span.is_error for span in attempts] == [True, True, False]
    assert [span.is_error for span in trace.all("run.lease")] == [True, True, False]
    assert "not yet" in attempts[0].error
    backoffs = trace.all("run.backoff")
    assert [span.attributes["attempt"] for span in backoffs] == [1, 2]
    leases = trace.all("run.lease")
    for before, backoff, after in zip(leases, backoffs, leases[1:], strict=False):
        assert before.end <= backoff.start
        assert backoff.end <= after.start


async def test_a_failed_execution_records_its_error(client: Client, spans: Collector) -> None:
    config = {"type": "PERMANENT", "message": "no such order"}
    nodes = [{"id": "lost", "module": "fail@1", "config": config}]
    execution, trace = await traced(client, spans, "failing", nodes)
    assert execution.state == STATE.FAILED
    failed = {span.name for span in trace.spans if span.is_error}
    assert failed == {"run.execute", "run.lease", "coordinator.complete"}
    assert "no such order" in trace.one("coordinator.complete").error


async def test_parallel_nodes_and_their_join_are_one_tree(client: Client, spans: Collector) -> None:
    nodes = [{"id": name, "module": "noop@1"} for name in ("a", "b", "c")]
    edges = [{"from": "a", "to": "c"}, {"from": "b", "to": "c"}]
    _, trace = await traced(client, spans, "joined", nodes, edges=edges, count=len(EVERY_HOP) + 2 * 2)
    for execute in trace.all("run.execute"):
        lease = some(trace.parent_of(execute))
        assert lease.name == "run.lease"
        assert lease.attributes["run.id"] == execute.attributes["run.id"]
    assert sorted(span.attributes["task.id"] for span in trace.all("run.lease")) == ["a", "b", "c"]


async def test_waiting_for_a_runner_is_visible(client: Client, spans: Collector) -> None:
    """There are more at once than the one runner has room for."""
    nodes = [
        {"id": f"n{number}", "module": "delay@1", "config": {"duration": "0.3s"}}
        for number in range(3 * RUNNER_CONCURRENCY)
    ]
    _, trace = await traced(client, spans, "crowded", nodes, count=len(EVERY_HOP) + 2 * len(nodes))
    leases = {span.attributes["run.id"]: span for span in trace.all("run.lease")}
    waits = trace.all("run.wait")
    assert 0 < len(waits) < len(nodes), str(trace)
    for wait in waits:
        assert wait.end == leases[wait.attributes["run.id"]].start


async def test_a_very_large_execution_goes_on_in_a_linked_trace(client: Client, spans: Collector) -> None:
    """After a thousand runs a numbered segment begins. The traces name each other, and runs name their own trace."""
    beyond = 5
    nodes = [{"id": f"n{number}", "module": "noop@1"} for number in range(1_000 + beyond)]
    await client.apply("large", nodes)
    execution = await client.run("large")
    assert execution.state == STATE.SUCCESS
    first = await spans.trace(execution.trace_id, names=[*EVERY_HOP, "coordinator.rollover"])
    rollover = first.one("coordinator.rollover")
    names = ["coordinator.segment", "run.lease", "run.execute"]
    second = await spans.trace(rollover.attributes["next.trace_id"], names=names, count=1 + 2 * beyond)
    root = second.one("coordinator.segment")
    assert second.roots == [root]
    assert root.attributes["previous.trace_id"] == execution.trace_id
    assert root.attributes["segment"] == 1
    assert root.attributes["execution.id"] == execution.id
    leases = second.all("run.lease")
    assert {span.parent_id for span in leases} == {root.span_id}
    assert len(leases) == beyond
    request = runs_pb2.GetRunRequest(run_id=leases[0].attributes["run.id"])
    assert (await client.call(client.runs.GetRun, request)).run.trace_id == root.trace_id


async def test_requests_of_a_run_hang_below_it_and_carry_the_trace_on(client: Client, spans: Collector) -> None:
    heard: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append((await reader.readuntil(b"\r\n\r\n")).decode().lower())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/orders?key=hush"
        await client.apply("calling", [{"id": "call", "module": "http.request@1", "config": {"url": url}}])
        execution = await client.run("calling")
    assert execution.state == STATE.SUCCESS
    trace = await spans.trace(execution.trace_id, names=[*EVERY_HOP, "http GET"])
    call = trace.one("http GET")
    assert trace.parent_of(call) == trace.one("run.execute")
    assert call.attributes["http.response.status_code"] == 200
    assert "hush" not in str(call.attributes)
    assert f"traceparent: 00-{execution.trace_id}-{call.span_id}-01" in heard[0]


async def test_queueing_for_a_slot_is_visible(stack: Stack, client: Client, spans: Collector) -> None:
    """Two executions want the one slot of a workspace, so the second one waits for as long as the first one lasts."""
    alone = await new_workspace(stack, "one-slot", executions_max=1)
    await alone.apply("slow", [{"id": "hold", "module": "delay@1", "config": {"duration": "0.4s"}}])
    started = await alone.start_many("slow", 2)
    traces = [await spans.trace(execution.trace_id, names=EVERY_HOP) for execution in started]
    first, second = sorted(traces, key=lambda trace: trace.one("dispatcher.grant").start)
    held = first.one("run.execute")
    wait = second.one("dispatcher.wait")
    assert wait.start < held.start < held.end <= wait.end, f"{first}\n{second}"
    assert wait.attributes["workspace"] == "one-slot"


@pytest.mark.chaos
async def test_death_of_a_runner_is_part_of_the_story(stack: Stack, client: Client, spans: Collector) -> None:
    """The lease that died with it is there with its error. Only its successor reports the work."""
    await client.apply("outlived", [{"id": "hold", "module": "delay@1", "config": {"duration": "1.5s"}}])
    execution = await client.start("outlived")

    async def begun() -> bool:
        return bool(await client.runs_of(execution.id))

    await eventually(begun, 20, "the step to be with the runner")
    killed = stack.kill("runner")
    assert (await client.end_of(execution.id)).state == STATE.SUCCESS
    await stack.ready_again("runner", 0, killed)
    trace = await spans.trace(execution.trace_id, names=EVERY_HOP, count=len(EVERY_HOP) + 1)
    died, done = trace.all("run.lease")
    assert [died.is_error, done.is_error] == [True, False], str(trace)
    assert died.end <= done.start
    assert trace.parent_of(trace.one("run.execute")) == done


async def test_a_child_goes_on_in_the_trace_of_its_parent(client: Client, spans: Collector) -> None:
    await client.apply("traced", ONE_NODE)
    child = {"id": "child", "module": "sub_workflow@1", "config": {"workflow": "traced"}}
    await client.apply("traced-parent", [child])
    execution = await client.run("traced-parent")
    assert execution.state == STATE.SUCCESS
    trace = await spans.trace(execution.trace_id, names={*EVERY_HOP, "coordinator.start_child"}, count=2)
    start = trace.one("coordinator.start_child")
    assert (trace.orphans, len(trace.roots)) == ([], 1), str(trace)
    assert {"dispatcher.enqueue", "dispatcher.wait", "dispatcher.grant"} >= {s.name for s in trace.children_of(start)}
    assert trace.children_of(start), str(trace)
    (leased,) = trace.all("run.lease")
    assert leased.attributes["execution.id"] == start.attributes["child.execution.id"]
