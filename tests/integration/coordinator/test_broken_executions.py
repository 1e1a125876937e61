"""A bug hits one execution at its commit or after it: that execution goes back, and the others go on."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pytest

from services.chassis.postgres.database import Database
from services.coordinator.app import after_commit, pending_append
from services.coordinator.core.effects import parking
from services.coordinator.core.projection import EXECUTION_COLUMNS, execution_row
from services.coordinator.core.run_ids import run_id
from services.coordinator.rpc import run_messages, watch
from tests.integration.coordinator.test_running_executions import line, state_of
from tests.support.coordinator_stage import Stage, eventually

SLEEP = {"id": "rest", "module": "sleep@1"}


def goes_on(on_stage: Stage) -> bool:
    return not any(each.ended.done() for each in on_stage.coordinators)


def reports_of(on_stage: Stage, order: Any, kind: str) -> list[Any]:
    return [
        getattr(report, kind)
        for report in on_stage.dispatcher.reports
        if report.head.lease_id == order.lease.lease_id and report.WhichOneof("report") == kind
    ]


def raising_for(order: Any, original: Callable[..., Any], *, after: int = 0) -> Callable[..., Any]:
    """The original function, which raises for the execution of this order after so many good calls."""
    calls = 0

    def work(execution: Any, *rest: Any) -> Any:
        nonlocal calls
        if execution.execution_id == order.lease.lease_id:
            calls += 1
            if calls > after:
                raise RuntimeError("a bug of ours")
        return original(execution, *rest)

    return work


@pytest.mark.parametrize("value", [None, 2**70], ids=["no row", "a row that nothing carries"])
async def test_execution_that_cannot_be_written_harms_none_of_the_same_flush(
    on_stage: Stage, monkeypatch: pytest.MonkeyPatch, value: int | None
) -> None:
    version = on_stage.catalog.add("v-line", **line(1))
    session, _ = await on_stage.with_runner()
    orders = [on_stage.dispatcher.order(version) for _ in range(5)]

    def row(execution: Any) -> tuple[Any, ...]:
        found = dict(zip(EXECUTION_COLUMNS, execution_row(execution), strict=True))
        if execution.execution_id == orders[2].lease.lease_id:
            if value is None:
                raise RuntimeError("a bug of ours")
            found["deadline_time"] = value
        return tuple(found.values())

    monkeypatch.setattr(pending_append, "execution_row", row)
    on_stage.dispatcher.grant(session, orders)
    await eventually(lambda: len(on_stage.dispatcher.finished) == 4)
    await eventually(lambda: reports_of(on_stage, orders[2], "released"))
    assert reports_of(on_stage, orders[2], "released")[0].reason == "INTERNAL"
    assert goes_on(on_stage)


async def test_fault_of_the_database_that_is_no_executions_ends_the_process_and_gives_up_nothing(
    on_stage: Stage, tables: Database
) -> None:
    session, runner = await on_stage.with_runner(is_silent=True)
    order = await on_stage.start_at(runner, session, on_stage.catalog.add("v-line", **line(1)))
    await tables.execute("ALTER TABLE journal RENAME TO elsewhere")
    try:
        runner.answer(runner.grants[0], None)
        await eventually(lambda: not goes_on(on_stage))
    finally:
        await tables.execute("ALTER TABLE elsewhere RENAME TO journal")
    assert not any(released.failed for released in reports_of(on_stage, order, "released"))


async def test_grant_that_cannot_be_made_costs_nobody_else_anything(
    on_stage: Stage, tables: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = on_stage.catalog.add("v-line", **line(2))
    # If the only place were lost with the grant, the others would wait for ever.
    session, runner = await on_stage.with_runner(capacity=1)
    broken = on_stage.dispatcher.order(version)
    others = [on_stage.dispatcher.order(version) for _ in range(3)]
    with monkeypatch.context() as bug:
        bug.setattr(run_messages, "run_id", raising_for(broken, run_id, after=1))
        on_stage.dispatcher.grant(session, [broken, *others])
        await eventually(lambda: reports_of(on_stage, broken, "released"))
        await eventually(lambda: len(on_stage.dispatcher.finished) == 3)
    (released,) = reports_of(on_stage, broken, "released")
    assert (released.failed, released.permanent, released.reason) == (True, False, "INTERNAL")
    # Its first step is in the journal, and its runner was told so once.
    first = f"{broken.lease.lease_id}.1"
    await eventually(lambda: first in runner.taken)
    assert on_stage.dispatcher.delivered == []
    assert await state_of(tables, broken.lease.lease_id) == ("RUNNING", 4, 2)
    assert goes_on(on_stage)

    again = on_stage.start(session, version, id_=broken.lease.lease_id, resumed=True)
    await eventually(lambda: again.lease.lease_id in on_stage.dispatcher.finished)
    assert [grant.node for grant in runner.grants if grant.execution_id == again.lease.lease_id] == ["n0", "n1"]
    await eventually(lambda: len(set(runner.taken)) == 8)
    assert len(runner.taken) == 8


class Unanswerable(list[Any]):
    """Answers of a batch, of which not even the first can be given."""

    def __iter__(self) -> NoReturn:
        raise RuntimeError("a bug of ours")


async def test_report_that_cannot_be_answered_goes_where_the_next_holder_finds_it(
    on_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = on_stage.catalog.add("v-line", **line(2))
    session, runner = await on_stage.with_runner(is_silent=True)
    orders = [on_stage.dispatcher.order(version) for _ in range(2)]
    on_stage.dispatcher.grant(session, orders)
    await eventually(lambda: len(runner.grants) == 2)
    run = after_commit.AfterCommit.run

    def run_with_bug(self: after_commit.AfterCommit, batch: Sequence[pending_append.PendingAppend]) -> None:
        for pending in batch:
            if pending.answers and pending.owned.execution_id == orders[0].lease.lease_id:
                pending.answers = Unanswerable(pending.answers)
        run(self, batch)

    with monkeypatch.context() as bug:
        bug.setattr(after_commit.AfterCommit, "run", run_with_bug)
        first = list(runner.grants)
        runner.work = lambda grant: {}
        for grant in first:
            runner.answer(grant, {})
        await eventually(lambda: len(runner.taken) == 3)
    assert [each.execution_id for each in on_stage.dispatcher.delivered] == [orders[0].lease.lease_id]
    assert len(reports_of(on_stage, orders[0], "released")) == 1
    assert orders[1].lease.lease_id in on_stage.dispatcher.finished
    assert goes_on(on_stage)

    # The result is in the journal nevertheless.
    again = on_stage.start(session, version, id_=orders[0].lease.lease_id, resumed=True)
    await eventually(lambda: again.lease.lease_id in on_stage.dispatcher.finished)
    assert [grant.node for grant in runner.grants if grant.execution_id == again.lease.lease_id] == ["n0", "n1"]
    await eventually(lambda: len(set(runner.taken)) == 4)
    assert len(runner.taken) == 4


async def test_execution_that_cannot_leave_goes_back_as_failed(
    on_stage: Stage, tables: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = on_stage.catalog.add("v-rest", name="w", nodes=[{**SLEEP, "config": {"duration": "3600s"}}], edges=[])
    _, session = await on_stage.coordinator()
    broken, good = (on_stage.dispatcher.order(version) for _ in range(2))
    monkeypatch.setattr(after_commit, "parking", raising_for(broken, parking))
    on_stage.dispatcher.grant(session, [broken, good])
    await eventually(lambda: reports_of(on_stage, good, "parked"))
    # Each try is reported as a failure, so that the execution is a dead letter in the end.
    for tries in (1, 2, 3):
        await eventually(lambda: len(reports_of(on_stage, broken, "released")) == tries)  # noqa: B023
        assert reports_of(on_stage, broken, "released")[-1].failed
        again = on_stage.dispatcher.order(version, id_=broken.lease.lease_id, resumed=True)
        on_stage.dispatcher.grant(session, [again])
    assert (await state_of(tables, broken.lease.lease_id))[0] == "WAITING"
    assert goes_on(on_stage)


async def test_news_that_cannot_be_told_cost_no_execution_its_holder(
    on_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = on_stage.catalog.add("v-line", **line(2))
    session, _ = await on_stage.with_runner()
    orders = [on_stage.dispatcher.order(version) for _ in range(2)]

    def wants(self: Any, execution_id: str, is_final: bool) -> bool:
        if execution_id == orders[0].lease.lease_id:
            raise RuntimeError("a bug of ours")
        return False

    monkeypatch.setattr(watch.WatchHub, "wants", wants)
    on_stage.dispatcher.grant(session, orders)
    await eventually(lambda: len(on_stage.dispatcher.finished) == 2)
    assert goes_on(on_stage)
