"""Leases change hands: adoption, fencing, dead runners, an absent database."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import pytest

from services.chassis.lease.frames import Lease, Refused
from services.chassis.postgres.connection import PgConnection
from services.chassis.postgres.database import CommitUnknown, Database
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.app.ports import Append, Fence
from services.coordinator.core.events import RunLeased, RunLost
from services.coordinator.store.journal import LOADING, PostgresJournal
from tests.support.coordinator_stage import SCALE, Stage, StageRunner, eventually, execution_id
from tests.support.journals import stored_events
from tests.support.pace import pause
from tests.support.postgres import Database as MigratedDatabase
from tests.support.postgres import PostgresCluster
from windlass.coordinator.v1 import sessions_pb2 as runs_pb

STEP = {"name": "w", "nodes": [{"id": "a", "module": "noop@1"}, {"id": "b", "module": "noop@1"}]}
STEP["edges"] = [{"from": "a", "to": "b"}]


async def story_of(tables: Database, id_: str) -> list[str]:
    return [type(stored.event).__name__ for stored in await stored_events(tables, id_)]


async def events_of(tables: Database, id_: str) -> int:
    return len(await story_of(tables, id_))


PLAIN = ["ExecutionStarted", "RunLeased", "RunSucceeded", "RunLeased", "RunSucceeded", "ExecutionFinished"]


async def going(on_stage: Stage, runner: StageRunner, session: Any) -> Any:
    """An execution whose first run is at the runner."""
    return await on_stage.start_at(runner, session, on_stage.catalog.add("v-step", **STEP))


async def test_the_next_holder_adopts_a_live_run_and_takes_its_result(on_stage: Stage, tables: Database) -> None:
    first, runner = await on_stage.with_runner("0", is_silent=True)
    order = await going(on_stage, runner, first)
    second_address, second = await on_stage.coordinator("1")
    await on_stage.attach_also(runner, second_address)
    on_stage.start(second, "v-step", id_=order.lease.lease_id, resumed=True)
    await eventually(lambda: adopted(tables, order.lease.lease_id))
    assert len(runner.grants) == 1, "S26: a live run is not granted twice"
    runner.work = lambda grant: {}
    runner.answer(runner.grants[0], {"ok": 1})
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
    assert [grant.node for grant in runner.grants] == ["a", "b"]


async def test_a_load_that_is_given_up_keeps_no_fence_locked(
    on_stage: Stage, tables: Database, database: MigratedDatabase
) -> None:
    """Otherwise the journals that it had locked could not be read again while it waits for the rest."""
    session, runner = await on_stage.with_runner("0", is_silent=True)
    ids = [(await going(on_stage, runner, session)).lease.lease_id for _ in range(2)]

    async def is_free() -> bool:
        free = "SELECT 1 FROM executions WHERE execution_id = %s FOR UPDATE SKIP LOCKED"
        return bool(await tables.fetch(free, (ids[0],)))

    url = database.url("coordinator")
    # Otherwise the server would notice the lost client too late for this test.
    await tables.execute("ALTER ROLE CURRENT_USER SET client_connection_check_interval = 0")
    reader = PgConnection(url, name="r", statement_seconds=0.5, settings={**LOADING, "statement_timeout": "60s"})
    journal = PostgresJournal(reader, reader, reader)
    async with await psycopg.AsyncConnection.connect(url) as other:
        await other.execute("SELECT 1 FROM executions WHERE execution_id = %s FOR UPDATE", (ids[1],))
        with pytest.raises(CommitUnknown):
            await journal.load([Lease(each, 2**62) for each in ids], is_patient=False)
        await eventually(is_free)
    await tables.execute("ALTER ROLE CURRENT_USER RESET client_connection_check_interval")
    await reader.close()


async def test_a_first_append_that_is_committed_while_its_fence_is_raised_is_found(
    on_stage: Stage, tables: Database, database: MigratedDatabase
) -> None:
    """PostgreSQL may finish the append of a holder that was killed. Its rows must not look as if they were gone."""
    session, runner = await on_stage.with_runner("0", is_silent=True)
    known = await going(on_stage, runner, session)
    url, fresh_id = database.url("coordinator"), execution_id()
    reader = PgConnection(url, name="late-loader", settings=LOADING)
    journal = PostgresJournal(reader, reader, reader)
    leases = [Lease(each, 2**62) for each in (known.lease.lease_id, fresh_id)]

    async def has_raised_fences() -> bool:
        waiting = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'late-loader' AND wait_event_type = 'Lock'"
        return bool(await tables.fetch(waiting))

    async with await psycopg.AsyncConnection.connect(url) as other:
        await other.execute("SELECT 1 FROM executions WHERE execution_id = %s FOR UPDATE", (leases[0].lease_id,))
        loading = asyncio.ensure_future(journal.load(leases, is_patient=False))
        await eventually(has_raised_fences)
        on_stage.start(session, "v-step", id_=fresh_id)
        await eventually(lambda: len(runner.grants) == 2)
    first, second = await loading
    assert (first.epoch, second.epoch) == (2**62, 2**62)
    assert second.events
    await reader.close()


async def adopted(tables: Database, id_: str) -> bool:
    rows = await tables.fetch("SELECT holder FROM executions WHERE execution_id = %s", (id_,))
    return bool(rows) and rows[0][0] == "coordinator-1"


async def test_a_holder_that_was_replaced_can_never_write_again(on_stage: Stage, tables: Database) -> None:
    on_stage.dispatcher.carries_on = False
    first, runner = await on_stage.with_runner("0", is_silent=True)
    order = await going(on_stage, runner, first)
    id_ = order.lease.lease_id
    _, second = await on_stage.coordinator("1")
    on_stage.start(second, "v-step", id_=id_, resumed=True)
    await eventually(lambda: adopted(tables, id_))
    before = await events_of(tables, id_)
    # The first coordinator still believes that it holds the execution. The report goes to the mailbox.
    runner.answer(runner.grants[0], {"ok": 1})
    await eventually(lambda: on_stage.dispatcher.delivered)
    await eventually(lambda: runner.taken)
    assert await events_of(tables, id_) == before
    second.post(on_stage.dispatcher.delivered)
    await eventually(lambda: on_stage.dispatcher.acknowledged)
    assert await events_of(tables, id_) > before
    # The acknowledgement was lost, so the message is sent again.
    second.post(on_stage.dispatcher.delivered)
    await eventually(lambda: len(on_stage.dispatcher.acknowledged) == 2)


async def test_a_repeated_report_goes_to_the_next_holder_if_the_lease_is_lost_during_the_append_of_another(
    on_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_stage.dispatcher.carries_on = False
    session, runner = await on_stage.with_runner("0", is_silent=True)
    one, other = [await going(on_stage, runner, session) for _ in range(2)]
    runner.answer(runner.grants[0], {})
    await eventually(lambda: len(runner.grants) == 3)
    append, revoked = PostgresJournal.append, OwnedExecutions.revoked
    is_appending, may_append, is_revoked = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def held_up(journal: PostgresJournal, appends: Sequence[Append]) -> Mapping[int, Fence]:
        assert [each.execution_id for each in appends] == [other.lease.lease_id], "the repeated report changes nothing"
        is_appending.set()
        await may_append.wait()
        return await append(journal, appends)

    def noted(executions: OwnedExecutions, leases: Sequence[Lease]) -> None:
        revoked(executions, leases)
        is_revoked.set()

    monkeypatch.setattr(PostgresJournal, "append", held_up)
    monkeypatch.setattr(OwnedExecutions, "revoked", noted)
    for grant in runner.grants[:2]:
        runner.answer(grant, {})
    await is_appending.wait()
    session.revoke([Refused(one.lease.lease_id, one.lease.epoch, "GRANTED_AGAIN")])
    await is_revoked.wait()
    may_append.set()
    await eventually(lambda: on_stage.dispatcher.delivered)
    assert [each.execution_id for each in on_stage.dispatcher.delivered] == [one.lease.lease_id]


async def test_a_raised_fence_alone_stops_the_holder_before(on_stage: Stage, tables: Database) -> None:
    """Another coordinator has read the journal and has not written yet, so only the epoch stands in the way."""
    session, runner = await on_stage.with_runner(is_silent=True)
    order = await going(on_stage, runner, session)
    id_ = order.lease.lease_id
    before = await story_of(tables, id_)
    await tables.execute("UPDATE executions SET epoch = epoch + 1 WHERE execution_id = %s", (id_,))
    runner.answer(runner.grants[0], {"ok": 1})
    await eventually(lambda: on_stage.dispatcher.delivered or runner.taken)
    assert await story_of(tables, id_) == before


async def test_an_append_whose_answer_was_lost_counts_once(
    on_stage: Stage, tables: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = PostgresJournal.append
    lost: list[Sequence[Append]] = []

    async def committed_and_lost(journal: PostgresJournal, appends: Sequence[Append]) -> Mapping[int, Fence]:
        refused = await append(journal, appends)
        if len(lost) < len(PLAIN) and not refused:
            lost.append(appends)
            raise CommitUnknown("no answer")
        return refused

    monkeypatch.setattr(PostgresJournal, "append", committed_and_lost)
    session, runner = await on_stage.with_runner()
    order = await going(on_stage, runner, session)
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished, seconds=10)
    assert lost
    assert await story_of(tables, order.lease.lease_id) == PLAIN


async def test_a_hint_that_it_is_new_does_not_start_it_twice(on_stage: Stage, tables: Database) -> None:
    session, runner = await on_stage.with_runner("0", is_silent=True)
    order = await going(on_stage, runner, session)
    id_ = order.lease.lease_id
    other_address, other = await on_stage.coordinator("1")
    await on_stage.attach_also(runner, other_address)
    # The definition is known there already, so nothing else makes that coordinator read the journal first.
    warm = on_stage.dispatcher.order("v-step", ends_only=True)
    warm.messages.add(message_id="w", execution_id=warm.lease.lease_id).cancel.reason = "warm"
    on_stage.dispatcher.grant(other, [warm])
    await eventually(lambda: warm.lease.lease_id in on_stage.dispatcher.finished)
    on_stage.start(other, "v-step", id_=id_, resumed=False)
    await eventually(lambda: adopted(tables, id_))
    runner.work = lambda grant: {}
    runner.answer(runner.grants[0], {})
    await eventually(lambda: id_ in on_stage.dispatcher.finished)


@pytest.mark.parametrize("is_idempotent", [True, False])
async def test_the_runs_of_a_dead_runner_go_to_another(on_stage: Stage, is_idempotent: bool) -> None:
    nodes = [{"id": "a", "module": "noop@1", "idempotent": is_idempotent}]
    version = on_stage.catalog.add(f"v-{is_idempotent}", name="w", nodes=nodes, edges=[])
    address, session = await on_stage.coordinator()
    doomed = await on_stage.runner(address, "doomed")
    doomed.work = lambda grant: None
    order = await on_stage.start_at(doomed, session, version)
    await doomed.holder.stop()
    other = await on_stage.runner(address, "other")
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished, seconds=20)
    assert other.grants[0].attempt == 2
    assert other.grants[0].may_have_run_before
    first, second = doomed.grants[0], other.grants[0]
    assert first.effect_key == second.effect_key
    assert first.lease.epoch < second.lease.epoch


TWO = {"name": "w", "nodes": [{"id": "once", "module": "x.y@1"}, {"id": "again", "module": "noop@1"}]}


async def losses_of(tables: Database, id_: str) -> list[tuple[str, int]]:
    """The events that lease or lose a run, with the number of the run, in the order of the journal."""
    events = [stored.event for stored in await stored_events(tables, id_)]
    return [(type(each).__name__, each.run) for each in events if isinstance(each, RunLeased | RunLost)]


@pytest.mark.parametrize("is_taken_over", [False, True])
async def test_a_dead_runners_word_on_its_module_sends_the_work_elsewhere_first(
    on_stage: Stage, tables: Database, is_taken_over: bool
) -> None:
    """The node does not say it. A coordinator that takes the execution over reads it in the journal."""
    version = on_stage.catalog.add("v-two", **TWO, edges=[])
    address, session = await on_stage.coordinator("0")
    doomed = await on_stage.runner(address, "doomed", idempotent=["noop@1"])
    doomed.work = lambda grant: None
    id_ = on_stage.start(session, version).lease.lease_id
    await eventually(lambda: len(doomed.grants) == 2)
    numbers = {grant.node: int(grant.lease.lease_id.rpartition(".")[2]) for grant in doomed.grants}
    assert {grant.node: grant.idempotent for grant in doomed.grants} == {"once": False, "again": True}
    if is_taken_over:
        address, session = await on_stage.coordinator("1")
        on_stage.start(session, version, id_=id_, resumed=True)
        await eventually(lambda: adopted(tables, id_))
    await doomed.holder.stop()
    await on_stage.runner(address, "other")
    await eventually(lambda: id_ in on_stage.dispatcher.finished)
    first, *_, last = [number for name, number in await losses_of(tables, id_) if name == "RunLost"]
    assert (first, last) == (numbers["again"], numbers["once"])
    told = await losses_of(tables, id_)
    assert told.index(("RunLeased", 3)) < told.index(("RunLost", numbers["once"]))


async def test_the_death_of_a_runner_is_charged_to_the_execution_whose_run_had_begun(
    on_stage: Stage, tables: Database
) -> None:
    version = on_stage.catalog.add("v-one", name="w", nodes=[{"id": "a", "module": "noop@1"}], edges=[])
    address, session = await on_stage.coordinator()
    doomed = await on_stage.runner(address, "doomed", idempotent=["noop@1"])
    doomed.work = lambda grant: None
    busy = on_stage.start(session, version).lease.lease_id
    await eventually(lambda: doomed.grants)
    lease = doomed.grants[0].lease
    doomed.progress.append(runs_pb.RunProgress(run_id=lease.lease_id, epoch=lease.epoch))
    await eventually(lambda: has_begun(tables, busy))
    fresh = on_stage.start(session, version).lease.lease_id
    await eventually(lambda: len(doomed.grants) == 2)
    await doomed.holder.stop()
    await on_stage.runner(address, "other")
    await eventually(lambda: on_stage.dispatcher.finished.keys() >= {busy, fresh})
    assert [await spared_in(tables, id_) for id_ in (busy, fresh)] == [[False], [True]]


async def has_begun(tables: Database, id_: str) -> bool:
    return "RunStarted" in await story_of(tables, id_)


async def spared_in(tables: Database, id_: str) -> list[bool]:
    events = [stored.event for stored in await stored_events(tables, id_)]
    return [event.is_spared for event in events if isinstance(event, RunLost)]


async def test_a_late_report_is_refused_and_recorded(on_stage: Stage, tables: Database) -> None:
    session, runner = await on_stage.with_runner(is_silent=True)
    order = await going(on_stage, runner, session)
    stale = runs_pb.RunGrant()
    stale.CopyFrom(runner.grants[0])
    stale.lease.epoch -= 1
    before = await events_of(tables, order.lease.lease_id)
    runner.answer(stale, {"late": True})
    await eventually(lambda: runner.refused)
    assert runner.refused[0][0] == stale.lease.lease_id
    assert await events_of(tables, order.lease.lease_id) == before + 1


async def test_a_report_for_an_unknown_execution_is_refused(on_stage: Stage) -> None:
    _, runner = await on_stage.with_runner()
    stranger = runs_pb.RunGrant()
    stranger.lease.lease_id, stranger.lease.epoch = f"{execution_id()}.1", 3
    runner.answer(stranger, {})
    await eventually(lambda: "LEASE_UNKNOWN" in [reason for _, reason in runner.refused])


async def test_an_absent_database_loses_nothing_and_redoes_nothing(
    on_stage: Stage, tables: Database, postgres: PostgresCluster
) -> None:
    session, runner = await on_stage.with_runner(is_silent=True)
    orders = [await going(on_stage, runner, session) for _ in range(3)]
    await postgres.server.stop()
    for grant in list(runner.grants):
        runner.answer(grant, {})
    runner.work = lambda grant: {}
    await pause(2 * SCALE)
    assert not runner.taken, "nothing is acknowledged before the commit"
    await postgres.server.start()
    await eventually(lambda: len(on_stage.dispatcher.finished) == 3, seconds=30)
    assert len(runner.grants) == 6
    for order in orders:
        story = await story_of(tables, order.lease.lease_id)
        # A grant may have met the end of the runner's stream. The runner never saw it, and it was granted again.
        unseen = ["RunLeased", "RunReleased"]
        if (place := next((i for i in range(len(story)) if story[i : i + 2] == unseen), None)) is not None:
            del story[place : place + 2]
        assert story == PLAIN


async def test_a_result_on_its_way_by_the_mailbox_is_awaited(on_stage: Stage, tables: Database) -> None:
    """The runner has reported to another coordinator and forgotten the run. The holder may hear NOT_HELD first."""
    first_address, first = await on_stage.coordinator("0")
    second_address, second = await on_stage.coordinator("1")
    runner = await on_stage.runner(first_address)
    await on_stage.attach_also(runner, second_address)
    runner.work = lambda grant: None
    order = await going(on_stage, runner, first)
    id_ = order.lease.lease_id
    on_stage.start(second, "v-step", id_=id_, resumed=True)
    await eventually(lambda: adopted(tables, id_))
    runner.answer(runner.grants[0], {"ok": 1})
    # The result counts, whichever coordinator it reached, and nothing is done again.
    runner.work = lambda grant: {}
    await eventually(lambda: id_ in on_stage.dispatcher.finished)
    assert "RunReleased" not in await story_of(tables, id_)
    assert [grant.node for grant in runner.grants] == ["a", "b"]


async def test_a_drain_hands_every_execution_back_unharmed(on_stage: Stage, tables: Database) -> None:
    session, runner = await on_stage.with_runner(is_silent=True)
    orders = [await going(on_stage, runner, session) for _ in range(3)]
    await on_stage.coordinators[0].stop()
    reports = {report.head.lease_id: report.released for report in on_stage.dispatcher.reports}
    assert set(reports) == {order.lease.lease_id for order in orders}
    assert all(each.reason == "DRAINING" and not each.failed for each in reports.values())
    assert all(each.begun for each in reports.values())
    assert not runner.revoked, "what runs goes on, for the next holder to adopt"
    for order in orders:
        assert await story_of(tables, order.lease.lease_id) == PLAIN[:2]


async def test_an_execution_whose_rows_are_gone_holds_up_no_other(on_stage: Stage, tables: Database) -> None:
    session, runner = await on_stage.with_runner(is_silent=True)
    lost, other = await going(on_stage, runner, session), await going(on_stage, runner, session)
    await tables.execute("DELETE FROM executions WHERE execution_id = %s", (lost.lease.lease_id,))
    runner.work = lambda grant: {}
    for grant in list(runner.grants):
        runner.answer(grant, {})
    await eventually(lambda: other.lease.lease_id in on_stage.dispatcher.finished)
    (report,) = [each for each in on_stage.dispatcher.reports if each.head.lease_id == lost.lease.lease_id]
    assert (report.released.reason, report.released.permanent) == ("JOURNAL_GONE", True)


async def test_an_execution_that_had_begun_and_has_no_rows_never_begins_again(
    on_stage: Stage, tables: Database
) -> None:
    session, runner = await on_stage.with_runner()
    version = on_stage.catalog.add("v-step", **STEP)
    ids = [on_stage.start(session, version).lease.lease_id for _ in range(2)]
    await eventually(lambda: all(id_ in on_stage.dispatcher.finished for id_ in ids))
    count = len(runner.grants)
    # Of one nothing is left, of the other all but the journal.
    await tables.execute("DELETE FROM executions WHERE execution_id = %s", (ids[0],))
    await tables.execute("DELETE FROM journal WHERE execution_id = %s OR execution_id = %s", ids)
    for id_ in ids:
        on_stage.start(session, version, id_=id_, resumed=True, begun=True)
    await eventually(lambda: set(ids) <= released(on_stage).keys())
    found = [released(on_stage)[id_] for id_ in ids]
    assert [(each.reason, each.permanent) for each in found] == [("JOURNAL_GONE", True)] * 2
    assert len(runner.grants) == count, "nothing is done a second time"


async def test_an_execution_that_no_holder_has_begun_begins_with_the_next(on_stage: Stage) -> None:
    session, _ = await on_stage.with_runner()
    order = on_stage.start(session, on_stage.catalog.add("v-step", **STEP), resumed=True)
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)


async def test_a_holder_reports_what_it_has_begun_and_still_holds(on_stage: Stage) -> None:
    session, runner = await on_stage.with_runner(is_silent=True)
    order = await going(on_stage, runner, session)
    await eventually(lambda: on_stage.dispatcher.begun)
    (report,) = on_stage.dispatcher.begun
    assert (report.head.lease_id, report.head.epoch) == (order.lease.lease_id, order.lease.epoch)
    runner.answer(runner.grants[0], {})
    runner.work = lambda grant: {}
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)


def released(on_stage: Stage) -> dict[str, Any]:
    reports = [each for each in on_stage.dispatcher.reports if each.WhichOneof("report") == "released"]
    return {each.head.lease_id: each.released for each in reports}
