"""What a runner hears of its leases and reports when the first answer went down with a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.chassis.lease.frames import Lease
from services.chassis.postgres.database import Database
from services.coordinator.core.events import RunCancelled
from tests.support.coordinator_stage import Stage, StageRunner, eventually, stage
from tests.support.journals import stored_events
from tests.support.live_sessions import live_sessions
from tests.support.pace import pause
from tests.support.postgres import Database as DatabaseOfTests
from tests.support.probe import some
from tests.support.proxy import cable
from windlass.coordinator.v1 import sessions_pb2 as runs_pb
from windlass.dispatcher.v1.sessions_pb2 import ExecutionMessage

STEP = {"name": "w", "nodes": [{"id": "a", "module": "noop@1"}], "edges": []}


async def going(on_stage: Stage, runner: StageRunner, session: Any, **definition: Any) -> Any:
    """An execution whose run is at the runner, which says nothing."""
    runner.work = lambda grant: None
    order = on_stage.start(session, on_stage.catalog.add(f"v-{len(definition)}", **{**STEP, **definition}))
    await eventually(lambda: order.lease.lease_id in [grant.execution_id for grant in runner.grants])
    return order


def cancel(session: Any, execution_id: str) -> None:
    message = ExecutionMessage(message_id=f"cancel {execution_id}", execution_id=execution_id)
    message.cancel.reason = "enough"
    session.post([message])


async def test_lost_revocation_is_repeated_at_the_attach(on_stage: Stage, tables: Database) -> None:
    """The runner says that it has stopped, so the execution does not end by the time alone."""
    address, session = await on_stage.coordinator("0")
    other_address, _ = await on_stage.coordinator("1")
    async with cable(address) as link:
        runner = await on_stage.runner(link.address)
        order = await going(on_stage, runner, session)
        await on_stage.attach_also(runner, other_address)
        link.cut()
        await eventually(lambda: live_sessions(runner.holder) == 1)
        cancel(session, order.lease.lease_id)
        await eventually(lambda: on_stage.dispatcher.acknowledged)
        link.mend()
        await eventually(lambda: runner.revoked)
        lease_id = runner.grants[0].lease.lease_id
        assert [(each.lease_id, each.reason) for each in runner.revoked] == [(lease_id, "CANCELLED")]
        stopped = runs_pb.RunReport()
        stopped.stopped.SetInParent()
        runner.report(runner.grants[0], stopped)
        await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
    events = [stored.event for stored in await stored_events(tables, order.lease.lease_id)]
    assert [each.is_reported for each in events if isinstance(each, RunCancelled)] == [True]


async def test_ended_lease_is_refused_at_every_attach(on_stage: Stage) -> None:
    """Nobody holds the execution any more, so only its rows can say it."""
    address, session = await on_stage.coordinator("0")
    other_address, _ = await on_stage.coordinator("1")
    async with cable(address) as link:
        runner = await on_stage.runner(link.address)
        order = await going(on_stage, runner, session)
        await on_stage.attach_also(runner, other_address)
        link.cut()
        await eventually(lambda: live_sessions(runner.holder) == 1)
        cancel(session, order.lease.lease_id)
        await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
        lease = Lease(runner.grants[0].lease.lease_id, runner.grants[0].lease.epoch)
        assert runner.holder.rules.leases == dict([lease])
        link.mend()
        await eventually(lambda: runner.revoked)
        assert [(each.lease_id, each.reason) for each in runner.revoked] == [(lease.lease_id, "LEASE_ENDED")]
    held = [lease, Lease(lease.lease_id, lease.epoch + 1), Lease("no run", 1)]
    named = some((await on_stage.attached(other_address, runner.holder.instance_id, held)).attached)
    assert [each.reason for each in named.refused] == ["LEASE_ENDED", "EPOCH_STALE", "LEASE_UNKNOWN"]
    strangers = some((await on_stage.attached(other_address, "a stranger", held)).attached)
    assert {each.reason for each in strangers.refused} == {"LEASE_UNKNOWN"}


async def test_lost_revocation_is_repeated_by_the_next_holder(on_stage: Stage) -> None:
    """The holder ends the run at the node's timeout, and cannot tell the runner."""
    address, session = await on_stage.coordinator("0")
    other_address, other = await on_stage.coordinator("1")
    # The wait is a random part of the delay, and the execution is parked if more than 10 s of it are left.
    retry = {"attempts": 2, "initialDelay": "24h", "maxDelay": "24h", "budget": 0}
    nodes = [{"id": "a", "module": "noop@1", "timeout": "0.1s", "retry": retry}]
    async with cable(address) as link:
        runner = await on_stage.runner(link.address)
        order = await going(on_stage, runner, session, nodes=nodes)
        await on_stage.attach_also(runner, other_address)
        link.cut()

        def is_handed_over() -> bool:
            """The work waits for its next attempt, or is with the other coordinator for it."""
            return any(each.WhichOneof("report") == "parked" for each in on_stage.dispatcher.reports)

        await eventually(is_handed_over)
        assert not runner.revoked
        on_stage.start(other, "v-1", id_=order.lease.lease_id, resumed=True)
        await eventually(lambda: runner.revoked)
    lease = runner.grants[0].lease
    assert [tuple(each)[:3] for each in runner.revoked] == [(lease.lease_id, lease.epoch, "LEASE_ENDED")]


async def test_repeated_report_is_acknowledged_when_the_execution_has_ended(on_stage: Stage) -> None:
    session, runner = await on_stage.with_runner()
    order = on_stage.start(session, on_stage.catalog.add("v-step", **STEP))
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished and runner.taken)
    runner.answer(runner.grants[0], {})
    await eventually(lambda: len(runner.taken) == 2)
    assert not runner.refused


async def test_late_report_on_an_ended_execution_is_refused(on_stage: Stage) -> None:
    """The runner did not say that it has stopped, so no outcome of it was ever accepted."""
    session, runner = await on_stage.with_runner()
    order = await going(on_stage, runner, session)
    cancel(session, order.lease.lease_id)
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
    runner.answer(runner.grants[0], {})
    await eventually(lambda: runner.refused)
    assert runner.refused == [(runner.grants[0].lease.lease_id, "EXECUTION_FINAL")]


@pytest.mark.parametrize("is_held", [True, False])
async def test_report_without_an_outcome_is_invalid(on_stage: Stage, is_held: bool) -> None:
    session, runner = await on_stage.with_runner()
    order = await going(on_stage, runner, session)
    grant = runs_pb.RunGrant()
    grant.CopyFrom(runner.grants[0])
    if not is_held:
        grant.lease.lease_id = "01931f3c-7a1b-7c3d-8e4f-1234567890ab.1"
    runner.report(grant, runs_pb.RunReport())
    await eventually(lambda: runner.refused)
    assert runner.refused == [(grant.lease.lease_id, "REPORT_INVALID")]
    runner.answer(runner.grants[0], {})
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)


async def test_report_under_another_epoch_is_refused_for_its_epoch(on_stage: Stage) -> None:
    session, runner = await on_stage.with_runner()
    order = await going(on_stage, runner, session)
    for epoch in (1, 3):
        grant = runs_pb.RunGrant()
        grant.CopyFrom(runner.grants[0])
        grant.lease.epoch = epoch
        runner.answer(grant, {})
    await eventually(lambda: len(runner.refused) == 2)
    assert {reason for _, reason in runner.refused} == {"EPOCH_STALE"}
    runner.answer(runner.grants[0], {})
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)


async def test_stream_that_breaks_for_two_seconds_costs_nobody_their_work(
    database: DatabaseOfTests, tmp_path: Path
) -> None:
    """With the times of production, work that may be done twice stays with its runner too."""
    nodes = [{"id": "a", "module": "noop@1", "idempotent": True}, {"id": "b", "module": "x.y@1"}]
    async with stage(database.url("coordinator"), tmp_path, lease_scale=1.0) as on_stage:
        address, session = await on_stage.coordinator()
        async with cable(address) as link:
            runner = await on_stage.runner(link.address)
            order = await going(on_stage, runner, session, nodes=nodes)
            await eventually(lambda: len(runner.grants) == 2)
            other = await on_stage.runner(address, "other")
            link.cut()
            await pause(2.0)
            link.mend()
            await eventually(lambda: live_sessions(runner.holder))
            for grant in list(runner.grants):
                runner.answer(grant, {})
            await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
    assert (len(runner.grants), other.grants, runner.edges) == (2, [], ["resumed"])


async def test_runner_that_comes_back_later_has_lost_only_what_may_be_done_twice(
    database: DatabaseOfTests, tmp_path: Path
) -> None:
    nodes = [{"id": "a", "module": "noop@1", "idempotent": True}, {"id": "b", "module": "x.y@1"}]
    async with stage(database.url("coordinator"), tmp_path, lease_scale=0.5) as on_stage:
        address, session = await on_stage.coordinator()
        async with cable(address) as link:
            runner = await on_stage.runner(link.address)
            order = await going(on_stage, runner, session, nodes=nodes)
            await eventually(lambda: len(runner.grants) == 2)
            other = await on_stage.runner(address, "other")
            link.cut()
            await eventually(lambda: other.grants)
            link.mend()
            await eventually(lambda: runner.revoked)
            (kept,) = (grant for grant in runner.grants if grant.node == "b")
            runner.answer(kept, {})
            await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
    (lost,) = (grant.lease for grant in runner.grants if grant.node == "a")
    assert [tuple(each)[:3] for each in runner.revoked] == [(lost.lease_id, lost.epoch, "LEASE_ENDED")]
    assert [grant.node for grant in other.grants] == ["a"]
    assert set(runner.edges) <= {"fenced", "resumed"}, "its instance lives"
