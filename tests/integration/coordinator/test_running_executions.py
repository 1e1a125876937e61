"""Executions from their grant to their result, with a real coordinator and a real journal."""

from typing import Any

from services.chassis.postgres.database import Database
from tests.support.coordinator_stage import Stage, eventually
from tests.support.journals import stored_events
from windlass.dispatcher.v1.sessions_pb2 import ExecutionMessage


def line(count: int, **more: Any) -> dict[str, Any]:
    nodes = [{"id": f"n{i}", "module": "noop@1", "config": {}} | more for i in range(count)]
    return {"name": "w", "nodes": nodes, "edges": [{"from": f"n{i}", "to": f"n{i + 1}"} for i in range(count - 1)]}


async def state_of(tables: Database, id_: str) -> tuple[Any, ...]:
    rows = await tables.fetch("SELECT state, last_seq, runs FROM executions WHERE execution_id = %s", (id_,))
    return rows[0] if rows else ()


async def test_a_line_of_steps_runs_to_its_result(on_stage: Stage, tables: Database) -> None:
    version = on_stage.catalog.add("v-line", **line(5))
    session, runner = await on_stage.with_runner()
    orders = [on_stage.dispatcher.order(version) for _ in range(20)]
    on_stage.dispatcher.grant(session, orders)
    await eventually(lambda: len(on_stage.dispatcher.finished) == 20)
    assert len(runner.grants) == 100
    assert on_stage.catalog.asked == ["v-line"]
    # It started, was leased and succeeded five times, and finished. S1: there is no gap.
    assert await state_of(tables, orders[0].lease.lease_id) == ("SUCCESS", 12, 5)
    for order in orders:
        numbers = [stored.seq for stored in await stored_events(tables, order.lease.lease_id)]
        assert numbers == list(range(1, 13))


async def test_the_completions_of_a_fan_out_fold_into_few_appends(on_stage: Stage, tables: Database) -> None:
    nodes = [{"id": f"n{i}", "module": "noop@1"} for i in range(200)] + [{"id": "all", "module": "join@1"}]
    edges = [{"from": f"n{i}", "to": "all"} for i in range(200)]
    version = on_stage.catalog.add("v-fan", name="w", nodes=nodes, edges=edges)
    session, _ = await on_stage.with_runner()
    order = on_stage.start(session, version)
    await eventually(lambda: on_stage.dispatcher.finished)
    assert await state_of(tables, order.lease.lease_id) == ("SUCCESS", 403, 201)


async def test_work_waits_for_a_runner_that_fits(on_stage: Stage, tables: Database) -> None:
    version = on_stage.catalog.add("v-gpu", **line(1, runnerLabels={"zone": "b"}))
    other = on_stage.catalog.add("v-any", **line(1, runnerLabels={"zone": "a"}))
    session, runner = await on_stage.with_runner()
    waiting, going = on_stage.dispatcher.order(version), on_stage.dispatcher.order(other)
    on_stage.dispatcher.grant(session, [waiting, going])
    await eventually(lambda: going.lease.lease_id in on_stage.dispatcher.finished)
    assert [grant.execution_id for grant in runner.grants] == [going.lease.lease_id]
    assert (await state_of(tables, waiting.lease.lease_id))[0] == "RUNNING"


async def test_a_cancel_is_journalled_acknowledged_and_stops_the_run(on_stage: Stage, tables: Database) -> None:
    version = on_stage.catalog.add("v-line", **line(2))
    session, runner = await on_stage.with_runner(is_silent=True)
    order = await on_stage.start_at(runner, session, version)
    message = ExecutionMessage(message_id="m1", execution_id=order.lease.lease_id)
    message.cancel.reason = "enough"
    session.post([message])
    await eventually(lambda: runner.revoked)
    assert runner.revoked[0].lease_id == runner.grants[0].lease.lease_id
    await eventually(lambda: "m1" in on_stage.dispatcher.acknowledged)
    await eventually(lambda: on_stage.dispatcher.finished, seconds=20)
    assert (await state_of(tables, order.lease.lease_id))[0] == "CANCELLED"


async def test_a_queued_execution_that_was_cancelled_is_only_ended(on_stage: Stage, tables: Database) -> None:
    version = on_stage.catalog.add("v-line", **line(2))
    _, session = await on_stage.coordinator()
    order = on_stage.dispatcher.order(version, ends_only=True)
    message = order.messages.add(message_id="m1", execution_id=order.lease.lease_id)
    message.cancel.reason = "never mind"
    on_stage.dispatcher.grant(session, [order])
    await eventually(lambda: on_stage.dispatcher.finished)
    assert (await state_of(tables, order.lease.lease_id))[0] == "CANCELLED"


async def test_a_long_sleep_parks_and_the_next_grant_goes_on(on_stage: Stage, tables: Database) -> None:
    nodes = [{"id": "rest", "module": "sleep@1", "config": {"duration": "3600s"}}]
    version = on_stage.catalog.add("v-sleep", name="w", nodes=nodes, edges=[])
    _, session = await on_stage.coordinator()
    order = on_stage.start(session, version)
    await eventually(lambda: on_stage.dispatcher.reports)
    parked = on_stage.dispatcher.reports[0].parked
    assert parked.wake_time.seconds > order.start.create_time.seconds + 3_500
    assert (await state_of(tables, order.lease.lease_id))[0] == "WAITING"
    again = on_stage.dispatcher.order(version, id_=order.lease.lease_id, resumed=True)
    message = again.messages.add(message_id="m2", execution_id=order.lease.lease_id)
    message.cancel.reason = "woken to end"
    on_stage.dispatcher.grant(session, [again])
    await eventually(lambda: on_stage.dispatcher.finished)
    assert (await state_of(tables, order.lease.lease_id))[0] == "CANCELLED"


async def test_idle_coordinators_leave_the_last_places_of_a_runner_to_the_one_with_work(on_stage: Stage) -> None:
    """Its workspace holds a place there already. So of what it is given, a place is kept free for other workspaces."""
    version = on_stage.catalog.add("v-one", **line(1))
    address, session = await on_stage.coordinator("0")
    runner = await on_stage.runner(address, capacity=3, work=lambda grant: None)
    other_address, _ = await on_stage.coordinator("1")
    await on_stage.attach_also(runner, other_address)
    await on_stage.start_at(runner, session, version)
    await on_stage.start_at(runner, session, version)
