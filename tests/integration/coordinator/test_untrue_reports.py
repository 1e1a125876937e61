"""What a runner says of runs that it does not have, or in a form that nobody can use: refused, and nobody else hurt."""

from typing import Any

from tests.support.coordinator_stage import Stage, StageRunner, eventually, execution_id
from windlass.coordinator.v1 import sessions_pb2 as runs_pb

STEP = {"name": "w", "nodes": [{"id": "a", "module": "noop@1"}], "edges": []}


def claim_of(lease_id: str, epoch: int = 2) -> runs_pb.RunGrant:
    grant = runs_pb.RunGrant()
    grant.lease.lease_id, grant.lease.epoch = lease_id, epoch
    return grant


async def going(on_stage: Stage, runner: StageRunner, session: Any) -> Any:
    """An execution whose run is at the runner, which says nothing."""
    runner.work = lambda grant: None
    order = on_stage.dispatcher.order(on_stage.catalog.add("v-one", **STEP))
    before = len(runner.grants)
    on_stage.dispatcher.grant(session, [order])
    await eventually(lambda: len(runner.grants) > before)
    return order


async def test_a_report_without_a_run_is_refused_and_the_coordinator_serves_on(on_stage: Stage) -> None:
    address, session = await on_stage.coordinator()
    runner = await on_stage.runner(address)
    id_ = execution_id()
    malformed = ["abc.1", "1", "", f"{id_}.x", f"{id_}.99999999999", "{},.1", id_.upper() + ".1"]
    for lease_id in malformed:
        runner.answer(claim_of(lease_id), {})
    await eventually(lambda: len(runner.refused) == len(malformed))
    assert {reason for _, reason in runner.refused} == {"LEASE_UNKNOWN"}
    order = await going(on_stage, runner, session)
    runner.answer(runner.grants[-1], {})
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
