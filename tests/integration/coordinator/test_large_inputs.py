"""Inputs of many megabytes reach a runner as long as they fit into one message. Larger ones fail for good."""

import functools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from services.chassis.postgres.database import Database as Connections
from services.coordinator.core.inputs import INPUTS_BYTES_MAX
from services.coordinator.core.values import INLINE_BYTES_MAX
from tests.support.coordinator_stage import Stage, eventually, stage
from tests.support.postgres import Database

LARGE = {"text": "x" * (INLINE_BYTES_MAX - 100)}
COUNT = INPUTS_BYTES_MAX // INLINE_BYTES_MAX + 2


@pytest_asyncio.fixture(loop_scope="session")
async def on_stage(database: Database, tmp_path: Path) -> AsyncIterator[Stage]:
    """Leases have full length: all sides share one process here, which is busy with the inputs for seconds."""
    async with stage(database.url("coordinator"), tmp_path, lease_scale=1.0) as made:
        yield made


def summing(count: int) -> dict[str, object]:
    """Many sources, a node and an output that see all of them, and a node that follows a failure."""
    sources = [f"n{number}" for number in range(count)]
    sums = {"id": "sum", "module": "transform@1", "inputs": {"x": "{{ nodes|length }}"}}
    return {
        "name": "w",
        "nodes": [*({"id": id, "module": "noop@1"} for id in sources), sums, {"id": "rescue", "module": "noop@1"}],
        "edges": [*({"from": id, "to": "sum"} for id in sources), {"from": "sum", "to": "rescue", "when": "failure"}],
        "output": {"count": "{{ nodes|length }}"},
    }


def has_finished(on_stage: Stage, count: int) -> bool:
    return len(on_stage.dispatcher.finished) == count


async def test_inputs_that_no_runner_can_be_handed_fail_alone(on_stage: Stage, tables: Connections) -> None:
    version = on_stage.catalog.add("v-too-large", **summing(COUNT))
    # If one of the three places were lost with each grant that is not made, the last execution would wait for ever.
    session, runner = await on_stage.with_runner(capacity=3)
    runner.work = lambda grant: LARGE if grant.node.startswith("n") else {}
    orders = [on_stage.dispatcher.order(version) for _ in range(2)]
    for number, order in enumerate(orders, 1):
        on_stage.dispatcher.grant(session, [order])
        await eventually(functools.partial(has_finished, on_stage, number), 60)
    assert runner.opened == 1
    assert [grant.node for grant in runner.grants if not grant.node.startswith("n")] == ["rescue"] * 2
    rows = await tables.fetch(
        "SELECT e.state, e.error_node, e.error_type, r.node, r.attempt, r.error_class, r.error_type, r.runner"
        " FROM executions e JOIN runs r USING (execution_id) WHERE execution_id = ANY(%s::uuid[])"
        " AND r.state = 'FAILED' ORDER BY e.execution_id, r.number",
        [[order.lease.lease_id for order in orders]],
    )
    ended = ("FAILED", "$output", "INPUTS_TOO_LARGE")
    failed = (1, "PERMANENT", "INPUTS_TOO_LARGE", "")
    assert rows == [(*ended, "sum", *failed), (*ended, "$output", *failed)] * 2


async def test_several_large_inputs_at_once_reach_their_runner(on_stage: Stage) -> None:
    """Each is far smaller than a message may be. Together they are far larger."""
    count = COUNT - 20
    version = on_stage.catalog.add("v-large", **summing(count))
    session, runner = await on_stage.with_runner()
    runner.work = lambda grant: LARGE if grant.node.startswith("n") else None if grant.node == "sum" else {}
    orders = [on_stage.dispatcher.order(version) for _ in range(3)]
    on_stage.dispatcher.grant(session, orders)
    await eventually(lambda: len(runner.grants) == 3 * (count + 1), 60)
    for grant in runner.grants[:]:
        if grant.node == "sum":
            assert len(grant.outputs) == count
            runner.answer(grant, {})
    await eventually(lambda: len(on_stage.dispatcher.finished) == 3, 60)
    assert runner.opened == 1
    assert {report.WhichOneof("report") for report in on_stage.dispatcher.finished.values()} == {"finished"}
