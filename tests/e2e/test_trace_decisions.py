"""An execution is traced or not from its start, and this decision holds wherever it goes on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from services.chassis.telemetry.tracing import new_trace
from tests.support.api import Client
from tests.support.otlp import Collector, Trace
from tests.support.postgres import free_port
from tests.support.probe import eventually, until
from tests.support.stack import STOP_SECONDS, Stack, running_stack
from windlass.api.v1 import resources_pb2

STATE = resources_pb2.Execution
TRACES_PER_SECOND = 2
BATCH = 60
# It lasts long enough for a kill in the middle, on a busy machine.
SLOW_STEP = "3s"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack(spans: Collector) -> AsyncIterator[Stack]:
    rate = f"api:WINDLASS_TRACES_PER_SECOND={TRACES_PER_SECOND}"
    async with running_stack(coordinators=2, otlp_endpoint=spans.endpoint, extra_env=[rate]) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(stack: Stack) -> Client:
    made = Client(stack)
    await made.apply("quick", [{"id": "only", "module": "noop@1"}])
    steps: list[dict[str, Any]] = [
        {"id": "before", "module": "noop@1"},
        {"id": "slow", "module": "delay@1", "config": {"duration": SLOW_STEP}},
        {"id": "after", "module": "noop@1"},
    ]
    edges = [{"from": "before", "to": "slow"}, {"from": "slow", "to": "after"}]
    await made.apply("stepwise", steps, edges=edges)
    return made


async def everything_has_come(client: Client, spans: Collector) -> None:
    """Each process exports in order, so the spans of a later execution come after all spans of the earlier ones."""
    last = new_trace(sampled=True)
    await client.run("quick", ("traceparent", last.header()))

    def four_services() -> bool:
        return len({span.service for span in spans.now(last.trace_id_hex).spans}) == 4

    await until(four_services, 20, "spans of all four services")


async def test_beyond_the_rate_nothing_is_traced(client: Client, spans: Collector) -> None:
    started = await client.start_many("quick", BATCH)
    ended = [await client.end_of(execution.id) for execution in started]
    assert {execution.state for execution in ended} == {STATE.SUCCESS}
    await everything_has_come(client, spans)
    ids = {execution.trace_id for execution in ended}
    assert len(ids) == BATCH
    traced = ids & spans.trace_ids
    # The bucket's content, and the tokens that it gained while the batch was read.
    assert TRACES_PER_SECOND <= len(traced) <= TRACES_PER_SECOND + BATCH // 10
    for trace_id in traced:
        trace = await spans.trace(trace_id, names=["coordinator.complete"])
        assert len(trace.roots) == 1, str(trace)


@pytest.mark.chaos
@pytest.mark.parametrize("is_sampled", [True, False], ids=["traced", "untraced"])
async def test_decision_outlives_its_coordinator(
    stack: Stack, client: Client, spans: Collector, is_sampled: bool
) -> None:
    """The holder dies in the middle. Its successor continues the trace, or continues without one."""
    outer = new_trace(is_sampled)
    execution = await client.start("stepwise", ("traceparent", outer.header()))
    holder = await _holder(stack, client, execution.id)
    if is_sampled:
        await until(lambda: _story_so_far(spans.now(outer.trace_id_hex)), 20, "the first half of the story")
    killed = stack.kill("coordinator", holder)
    final = await client.end_of(execution.id)
    await stack.ready_again("coordinator", holder, killed)
    assert final.state == STATE.SUCCESS
    assert final.trace_id == outer.trace_id_hex
    if not is_sampled:
        await everything_has_come(client, spans)
        assert outer.trace_id_hex not in spans.trace_ids
        return
    trace = await until(lambda: _whole(spans.now(outer.trace_id_hex)), 20, "the rest of it")
    first, second = trace.all("dispatcher.grant")
    assert [first.attributes["resumed"], second.attributes["resumed"]] == [False, True]
    assert trace.parent_of(trace.one("coordinator.complete")) == second, str(trace)
    for execute in trace.all("run.execute"):
        lease = trace.parent_of(execute)
        assert lease is not None, str(trace)
        assert lease.attributes["run.id"] == execute.attributes["run.id"]
    # Only the caller's own span was not sent here.
    assert [span.name for span in trace.orphans] == ["api.StartExecution"], str(trace)


async def test_a_collector_that_is_away_costs_spans_only() -> None:
    """Executions go on, and the stack still ends in its time, as `running_stack` asserts at its end."""
    nobody = f"http://127.0.0.1:{free_port()}"
    async with running_stack(otlp_endpoint=nobody) as stack:
        client = Client(stack)
        await client.apply("untold", [{"id": "only", "module": "noop@1"}])
        for _ in range(5):
            execution = await client.run("untold")
            assert execution.state == STATE.SUCCESS
            assert execution.trace_id
        stack.process.terminate()
        assert await asyncio.wait_for(stack.process.wait(), STOP_SECONDS) == 0


async def _holder(stack: Stack, client: Client, execution_id: str) -> int:
    """The replica of the coordinator that has it, once its slow step is with a runner."""

    async def slow_step() -> list[resources_pb2.Run]:
        return [run for run in await client.runs_of(execution_id) if run.node == "slow"]

    await eventually(slow_step, 20, "the slow step to begin")
    ((holder,),) = await stack.rows("SELECT holder FROM coordinator.executions WHERE execution_id = %s", execution_id)
    return int(holder.removeprefix("coordinator-"))


def _story_so_far(trace: Trace) -> bool:
    ended = {span.attributes["task.id"] for span in trace.all("run.lease")}
    return "before" in ended and bool(trace.all("coordinator.start"))


def _whole(trace: Trace) -> Trace | None:
    ended = {span.attributes["task.id"] for span in trace.all("run.lease")}
    done = {span.attributes["task.id"] for span in trace.all("run.execute")}
    is_whole = trace.all("coordinator.complete") and ended == done == {"before", "slow", "after"}
    return trace if is_whole else None
