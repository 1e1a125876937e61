"""`windlass admin verify` finds each breach and no other. The rows of a stack are falsified, one promise at a time.

The stack keeps running, and every falsification is rolled back.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
import pytest_asyncio
from psycopg import IsolationLevel

from deploy.audit.auditor import Auditor
from deploy.audit.findings import TITLES
from services.coordinator.core import events as ev
from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.definition import Definition
from services.coordinator.core.fold import apply
from services.coordinator.core.state import Execution
from services.coordinator.core.values import SECOND, Error, ErrorClass, WorkKey
from services.coordinator.store.codec import Stored, encode_event, seal, unseal
from services.coordinator.store.snapshots import JournalSnapshotLog
from tests.chaos import judged_cases
from tests.chaos.load import Load
from tests.chaos.verify import verify
from tests.support.postgres import reachable_directory
from tests.support.probe import eventually
from tests.support.stack import Stack, running_stack

MODULES = Path(__file__).with_name("ledger_modules.py")
DAY = 86_400 * SECOND
# Events that carry the epoch of a lease: what comes after the end of an execution is under a lease of its own.
GRANTS = (ev.ExecutionStarted, ev.ExecutionAdopted, ev.ExecutionReopened, ev.DeadLetterResolved)
Connection = psycopg.AsyncConnection[tuple[Any, ...]]


@dataclass
class Told:
    """A stack, and executions of every kind that the promises speak of."""

    stack: Stack
    load: Load
    row: str
    retry: str
    branch: str
    loops: str
    # It waited for the circuit of its target, and was let through.
    held_back: str
    # Its dead letter was discarded.
    discarded: str
    # It was paused before its signal came.
    paused: str
    # Their run is under way. The run of the first one has outlived its coordinator.
    adopted: str
    held: str


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def told() -> AsyncIterator[Told]:
    ledger = reachable_directory("windlass-ledger-")
    (ledger / "effects").mkdir()
    async with running_stack(
        coordinators=2, modules=[MODULES], extra_env=[f"runner:WINDLASS_TEST_LEDGER={ledger}"]
    ) as stack:
        load = Load(stack, ledger, seed=1)
        await load.apply()
        names = ("row", "retry", "branch", "loops")
        row, retry, branch, loops = [await load.start(f"chaos-{name}") for name in names]
        for execution_id in (row, retry, branch, loops):
            await load.final(execution_id)
        held_back = await judged_cases.held_back(load)
        discarded = await judged_cases.discarded(stack, load)
        paused = await judged_cases.paused(load)
        await judged_cases.fixed(stack, load)
        await judged_cases.loop_over_a_workflow(load)
        async with load.held(1) as (adopted,):
            await _taken_over(stack, adopted)
            async with load.held(1) as (held,):
                yield Told(stack, load, row, retry, branch, loops, held_back, discarded, paused, adopted, held)
    shutil.rmtree(ledger)


async def _taken_over(stack: Stack, execution_id: str) -> None:
    """Kill the coordinator that holds it, and wait until another one goes on."""
    async with await psycopg.AsyncConnection.connect(stack.superuser_url(), autocommit=True) as connection:

        async def holder() -> tuple[str, int]:
            (row,) = await rows(
                connection, "SELECT holder, last_seq FROM coordinator.executions WHERE execution_id = %s", execution_id
            )
            return str(row[0]), int(row[1])

        name, seq = await holder()
        replica = int(name.rpartition("-")[2])
        pid = stack.kill("coordinator", replica)

        async def is_adopted() -> bool:
            return (await holder())[1] > seq

        await eventually(is_adopted, 30, "another coordinator to take over")
        await stack.ready_again("coordinator", replica, pid)


async def rows(connection: Connection, sql: str, *params: object) -> list[tuple[Any, ...]]:
    return await (await connection.execute(sql, params)).fetchall()


class Falsifier:
    """Rewrites stored rows inside a transaction that will be rolled back."""

    def __init__(self, connection: Connection, told: Told) -> None:
        self._connection = connection
        self.told = told

    async def run_each(self, execution: str, *statements: str) -> None:
        """Statements about an execution that `told` names."""
        for sql in statements:
            await self.run(sql, *([getattr(self.told, execution)] if "%s" in sql else []))

    async def run(self, sql: str, *params: object) -> None:
        cursor = await self._connection.execute(sql, params)
        assert cursor.rowcount, f"nothing was falsified by {sql}"

    async def definition(self, version_id: str) -> Definition:
        version = "SELECT definition, template_references FROM api.workflow_versions WHERE version_id = %s"
        ((document, references),) = await rows(self._connection, version, version_id)
        return compile_definition(orjson.loads(document), orjson.loads(references))

    async def journal(self, id_: str) -> list[Stored]:
        found = await rows(
            self._connection, "SELECT events FROM coordinator.journal WHERE execution_id = %s ORDER BY last_seq", id_
        )
        return [stored for row in found for stored in unseal(row[0])]

    async def rewrite(self, id_: str, records: list[Stored]) -> None:
        await self.run("DELETE FROM coordinator.journal WHERE execution_id = %s", id_)
        for record in records:
            assert isinstance(record.event, ev.Event)
            # Each event gets a row, so that each can be falsified by itself.
            row = seal(id_, record.seq, record.epoch, record.event.time, [encode_event(record.event)])
            await self.run(
                "INSERT INTO coordinator.journal (execution_id, last_seq, epoch, events) VALUES (%s, %s, %s, %s)",
                *(id_, record.seq, record.epoch, row),
            )

    async def with_events(self, id_: str, change: Callable[[list[ev.Event]], list[ev.Event]]) -> None:
        """Replace the events of the journal. Each record has the epoch of the grant before it."""
        events = change([record.event for record in await self.journal(id_) if isinstance(record.event, ev.Event)])
        records: list[Stored] = []
        epoch = 0
        for seq, event in enumerate(events, 1):
            if isinstance(event, GRANTS):
                epoch = event.epoch
            records.append(Stored(id_, seq, epoch, event))
        await self.rewrite(id_, records)


def first(events: list[ev.Event], kind: type[Any], **having: object) -> Any:
    return next(
        event
        for event in events
        if isinstance(event, kind) and all(getattr(event, name) == value for name, value in having.items())
    )


def changed(events: list[ev.Event], event: ev.Event, **values: Any) -> list[ev.Event]:
    return [replace(each, **values) if each is event else each for each in events]


Falsify = Callable[[Falsifier], Awaitable[None]]
Change = Callable[[list[ev.Event]], list[ev.Event]]


# The name of each begins with the promise that it breaks. These are single statements about one execution.

EXECUTIONS = "UPDATE coordinator.executions"
RUNS = "UPDATE coordinator.runs"
QUEUE = "UPDATE dispatcher.queue"
REQUESTS = "UPDATE dispatcher.requests"
ONE_SLOT = "UPDATE dispatcher.tenants SET executions_max = 1"
IN_ROWS = {
    "s2_the_fence_has_fallen": ("row", f"{EXECUTIONS} SET epoch = 0 WHERE execution_id = %s"),
    "s3_fenced_above_every_grant": ("held", f"{EXECUTIONS} SET epoch = epoch + 1000 WHERE execution_id = %s"),
    "s3_granted_above_what_was_minted": ("held", f"{QUEUE} SET epoch = epoch + 1000 WHERE execution_id = %s"),
    "s6_a_row_that_is_not_the_fold": ("row", f"{EXECUTIONS} SET retries = retries + 1 WHERE execution_id = %s"),
    "s6_a_run_that_no_event_made": ("row", f"{RUNS} SET number = 99 WHERE execution_id = %s AND number = 1"),
    "s6_a_flipped_bit": (
        "row",
        (
            "UPDATE coordinator.journal SET events = set_bit(events, 77, 1 - get_bit(events, 77))"
            " WHERE execution_id = %s"
        ),
    ),
    "s6_a_journal_without_its_row": (
        "row",
        "DELETE FROM dispatcher.requests WHERE execution_id = %s",
        "DELETE FROM coordinator.executions WHERE execution_id = %s",
    ),
    "s11_one_holds_the_lease_and_another_writes": (
        "held",
        (
            f"{QUEUE} q SET holder = s.instance_id FROM dispatcher.coordinator_sessions s,"
            " dispatcher.coordinator_sessions own WHERE q.execution_id = %s AND own.instance_id = q.holder"
            " AND s.holder <> own.holder"
        ),
    ),
    "s12_queued_in_another_workspace": ("held", f"{QUEUE} SET workspace = 'other' WHERE execution_id = %s"),
    "s12_a_key_of_another_workspace": ("row", f"{REQUESTS} SET workspace = 'other' WHERE execution_id = %s"),
    "s13_more_going_than_slots": ("held", ONE_SLOT, "UPDATE dispatcher.tenants SET lowered_epoch = 0"),
    "s13_granted_past_a_limit_that_had_been_lowered": (
        "held",
        ONE_SLOT,
        f"{QUEUE} SET epoch = nextval('dispatcher.epochs') WHERE execution_id = %s",
    ),
}


def in_rows(execution: str, *statements: str) -> Falsify:
    return lambda false: false.run_each(execution, *statements)


async def with_last_record(false: Falsifier, field: str, step: int) -> None:
    *before, last = await false.journal(false.told.row)
    await false.rewrite(false.told.row, [*before, last._replace(**{field: getattr(last, field) + step})])


# The functions below add the others.
BREACHES: dict[str, Falsify] = {
    **{name: in_rows(*told) for name, told in IN_ROWS.items()},
    "s1_a_record_is_missing": partial(with_last_record, field="seq", step=1),
    "s2_a_record_of_a_stale_epoch": partial(with_last_record, field="epoch", step=-1),
    "s2_a_record_of_an_epoch_that_was_not_granted": partial(with_last_record, field="epoch", step=1),
}


def breach(falsify: Falsify) -> Falsify:
    BREACHES[falsify.__name__] = falsify
    return falsify


def breach_in(execution: str) -> Callable[[Change], Change]:
    """The journal of this execution gets other events."""

    def registered(change: Change) -> Change:
        BREACHES[change.__name__] = lambda false: false.with_events(getattr(false.told, execution), change)
        return change

    return registered


@breach_in("adopted")
def s3_the_same_epoch_at_the_next_grant(events: list[ev.Event]) -> list[ev.Event]:
    start = first(events, ev.ExecutionStarted)
    return changed(events, first(events, ev.ExecutionAdopted), epoch=start.epoch, holder=start.holder)


@breach
async def s3_one_epoch_for_two_executions(false: Falsifier) -> None:
    (start, *_) = await false.journal(false.told.row)
    await false.with_events(
        false.told.retry, lambda events: changed(events, first(events, ev.ExecutionStarted), epoch=start.epoch)
    )


@breach
async def s6_an_approval_that_nobody_asked_for(false: Falsifier) -> None:
    await false.run(
        "INSERT INTO coordinator.approvals (execution_id, number, required, create_time, state, workspace, workflow,"
        " node, title, form, assignees, decisions)"
        " VALUES (%s, 1, 1, now(), 'PENDING', 'default', 'chaos-row', 'a', 'Pay?', '{}', '[]', '[]')",
        false.told.row,
    )


@breach
async def s4_what_was_acknowledged_is_nowhere(false: Falsifier) -> None:
    await false.run(
        "INSERT INTO dispatcher.requests (workspace, request_id, hash, execution_id)"
        " VALUES ('default', 'lost', '', %s)",
        str(uuid.uuid4()),
    )


@breach
async def s5_a_key_is_answered_with_what_another_asked_for(false: Falsifier) -> None:
    await false.run(f"{REQUESTS} SET execution_id = %s WHERE execution_id = %s", *(false.told.retry, false.told.row))


@breach_in("row")
def s7_something_after_the_end(events: list[ev.Event]) -> list[ev.Event]:
    late = ev.LateReportRejected(time=events[-1].time, key=WorkKey("a"), run=1, epoch=2, report="RunSucceeded")
    return [*events, late]


@breach_in("row")
def s8_a_second_outcome_of_one_run(events: list[ev.Event]) -> list[ev.Event]:
    success = first(events, ev.RunSucceeded)
    place = events.index(success)
    return [*events[:place], success, *events[place:]]


@breach_in("row")
def s8_a_second_run_of_what_was_done(events: list[ev.Event]) -> list[ev.Event]:
    lease = first(events, ev.RunLeased, key=WorkKey("c"))
    return [*events[:-1], replace(lease, run=99, attempt=2), events[-1]]


@breach_in("retry")
def s9_an_attempt_twice(events: list[ev.Event]) -> list[ev.Event]:
    return changed(events, first(events, ev.RunLeased, attempt=2), attempt=1)


@breach_in("row")
def s10_started_before_its_source_ended(events: list[ev.Event]) -> list[ev.Event]:
    success, lease = first(events, ev.RunSucceeded, run=1), first(events, ev.RunLeased, key=WorkKey("b"))
    others = [event for event in events if event not in (success, lease)]
    place = others.index(first(others, ev.RunLeased, key=WorkKey("a"))) + 1
    return [*others[:place], lease, success, *others[place:]]


@breach_in("branch")
def s10_started_behind_an_edge_that_was_not_taken(events: list[ev.Event]) -> list[ev.Event]:
    big, small = WorkKey("big"), WorkKey("small")
    return [
        replace(event, key=small) if isinstance(event, ev.RunLeased | ev.RunSucceeded) and event.key == big else event
        for event in events
    ]


@breach_in("loops")
def s8_a_second_outcome_of_an_item(events: list[ev.Event]) -> list[ev.Event]:
    lease = first(events, ev.RunLeased, key=WorkKey("each", 2))
    success = first(events, ev.RunSucceeded, key=WorkKey("each", 2))
    place = events.index(success) + 1
    again = [replace(lease, run=99, attempt=2), replace(success, run=99)]
    return [*events[:place], *again, *events[place:]]


@breach_in("loops")
def s10_an_item_that_begins_when_its_loop_is_over(events: list[ev.Event]) -> list[ev.Event]:
    last = [first(events, kind, key=WorkKey("each", 5)) for kind in (ev.RunLeased, ev.RunSucceeded)]
    others = [event for event in events if event not in last]
    place = others.index(first(others, ev.LoopClosed, key=WorkKey("each"))) + 1
    return [*others[:place], *last, *others[place:]]


@breach_in("held")
def s11_a_run_leased_twice(events: list[ev.Event]) -> list[ev.Event]:
    return [*events, replace(first(events, ev.RunLeased), run=2, attempt=2)]


@breach_in("held")
def s11_two_holders_under_one_epoch(events: list[ev.Event]) -> list[ev.Event]:
    start = first(events, ev.ExecutionStarted)
    return [*events, ev.ExecutionAdopted(time=events[-1].time, epoch=start.epoch, holder="coordinator-9")]


@breach
async def s12_run_by_another_workspaces_definition(false: Falsifier) -> None:
    (record, *_) = await false.journal(false.told.row)
    assert isinstance(record.event, ev.ExecutionStarted)
    await false.run(
        "UPDATE api.workflow_versions SET workspace = 'other' WHERE version_id = %s", record.event.origin.version_id
    )


@breach
async def s14_two_executions_of_one_key(false: Falsifier) -> None:
    await _ask_again(false, before=0)


@breach
async def s6_a_snapshot_that_is_not_the_fold(false: Falsifier) -> None:
    await _with_snapshot(false, lambda execution: setattr(execution.runs[0].work, "attempts", 7))


@breach
async def s6_a_snapshot_that_cannot_be_read(false: Falsifier) -> None:
    await _with_snapshot(false, lambda execution: None)
    await false.run("UPDATE coordinator.snapshots SET data = '\\x00' WHERE execution_id = %s", false.told.row)


async def _with_snapshot(false: Falsifier, change: Callable[[Execution], None]) -> None:
    """Store a snapshot of the finished execution, as a coordinator would after this change of its state."""
    records = await false.journal(false.told.row)
    assert isinstance(records[0].event, ev.ExecutionStarted)
    execution = Execution(false.told.row, await false.definition(records[0].event.origin.version_id))
    for record in records:
        assert isinstance(record.event, ev.Event)
        apply(execution, record.event)
    change(execution)
    snapshot = JournalSnapshotLog(execution, 1).due(execution)
    assert snapshot is not None
    assert snapshot.is_whole
    await false.run("INSERT INTO coordinator.snapshots VALUES (%s, %s, %s, %s, %s)", execution.execution_id, *snapshot)


@breach_in("retry")
def s19_a_wait_cut_short(events: list[ev.Event]) -> list[ev.Event]:
    return changed(events, first(events, ev.BackoffEnded), time=1)


@breach_in("adopted")
def s26_an_adopted_run_is_granted_again(events: list[ev.Event]) -> list[ev.Event]:
    return s11_a_run_leased_twice(events)


@breach_in("adopted")
def s26_a_live_run_is_called_lost(events: list[ev.Event]) -> list[ev.Event]:
    lease = first(events, ev.RunLeased)
    error = Error(ErrorClass.TRANSIENT, "RUNNER_LOST", "")
    then = ev.Consequences(ready=(lease.key,))
    lost = ev.RunLost(
        time=events[-1].time, key=lease.key, run=lease.run, error=error, fingerprint="", reason=None,
        is_handled=False, then=then,
    )  # fmt: skip
    # Idempotent work may be granted elsewhere while its runner is only out of reach.
    return [*changed(events, lease, is_idempotent=False), lost]


PERMITTED: dict[str, Falsify] = {
    "a_lowered_limit_drains": in_rows("held", ONE_SLOT),
    "a_limit_raised_again_still_drains": in_rows("held", "UPDATE dispatcher.tenants SET executions_max = 0", ONE_SLOT),
    "a_key_may_be_used_again_after_its_days": lambda false: _ask_again(false, before=31 * DAY),
}


async def _ask_again(false: Falsifier, before: int) -> None:
    """Give one execution the key of another one, as if it had been asked for earlier by this interval."""
    (record, *_) = await false.journal(false.told.retry)
    assert isinstance(record.event, ev.ExecutionStarted)
    key = record.event.origin.request_id
    await false.run("DELETE FROM dispatcher.requests WHERE execution_id = %s", false.told.row)

    def asked_for(events: list[ev.Event]) -> list[ev.Event]:
        start = first(events, ev.ExecutionStarted)
        origin = replace(start.origin, request_id=key, create_time=start.origin.create_time - before)
        return changed(events, start, origin=origin)

    await false.with_events(false.told.row, asked_for)
    await false.run(
        "UPDATE coordinator.executions SET request_id = %s, create_time = create_time - %s * interval '1 us'"
        " WHERE execution_id = %s",
        *(key, before, false.told.row),
    )


@breach_in("discarded")
def s16_a_dead_letter_is_resolved_twice(events: list[ev.Event]) -> list[ev.Event]:
    return [*events, first(events, ev.DeadLetterResolved)]


@breach_in("paused")
def s18_granted_while_it_was_paused(events: list[ev.Event]) -> list[ev.Event]:
    lease, resumed = first(events, ev.RunLeased, key=WorkKey("b")), first(events, ev.ExecutionResumed)
    others = [event for event in events if event is not resumed]
    place = others.index(lease) + 1
    return [*others[:place], resumed, *others[place:]]


@breach_in("retry")
def s18_a_timer_fires_while_it_was_paused(events: list[ev.Event]) -> list[ev.Event]:
    place = events.index(first(events, ev.BackoffEnded))
    paused = ev.ExecutionPaused(time=events[place].time, message_id="m", caller="ann", reason="")
    resumed = ev.ExecutionResumed(time=events[place].time, message_id="n", caller="ann")
    return [*events[:place], paused, events[place], resumed, *events[place + 1 :]]


@breach
async def s16_a_discarded_execution_is_queued_again(false: Falsifier) -> None:
    await false.run(f"{QUEUE} SET resolution = 'DISCARDED' WHERE execution_id = %s", false.told.held)


@breach_in("held_back")
def s20_work_is_granted_that_its_circuit_has_not_let_through(events: list[ev.Event]) -> list[ev.Event]:
    held = first(events, ev.WorkHeldBack)
    return [held if isinstance(each, ev.WorkLetThrough) else each for each in events]


@breach_in("held_back")
def s20_work_is_let_through_that_did_not_wait(events: list[ev.Event]) -> list[ev.Event]:
    let_through = first(events, ev.WorkLetThrough)
    return [let_through if isinstance(each, ev.WorkHeldBack) else each for each in events]


@breach
async def s20_a_closed_circuit_has_permits(false: Falsifier) -> None:
    await false.run(
        "INSERT INTO coordinator.circuits (workspace, target, permits)"
        " VALUES ('default', 'x.y@1 z', '[[\"work\", 4000000000000000]]')"
    )


async def broken_by(told: Told, falsify: Falsify) -> dict[str, list[str]]:
    async with await psycopg.AsyncConnection.connect(told.stack.superuser_url()) as connection:
        await connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        async with connection.transaction(force_rollback=True):
            await falsify(Falsifier(connection, told))
            findings = await Auditor(connection).audit()
    return {line["promise"]: line["broken"] for line in findings.lines() if line["broken_count"]}


@pytest.mark.chaos
async def test_a_sound_stack_shows_cases_of_every_promise_and_no_breach(told: Told) -> None:
    await verify(told.stack, set(TITLES))


@pytest.mark.chaos
@pytest.mark.parametrize("breach", BREACHES)
async def test_a_breach_is_found_under_its_own_name_alone(told: Told, breach: str) -> None:
    broken = await broken_by(told, BREACHES[breach])
    assert list(broken) == [breach.partition("_")[0].upper()], broken


@pytest.mark.chaos
@pytest.mark.parametrize("permitted", PERMITTED)
async def test_what_is_allowed_is_no_breach(told: Told, permitted: str) -> None:
    assert not await broken_by(told, PERMITTED[permitted])


def test_every_promise_has_a_breach_of_its_own() -> None:
    assert {breach.partition("_")[0].upper() for breach in BREACHES} == set(TITLES)
