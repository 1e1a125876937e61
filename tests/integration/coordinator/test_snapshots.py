"""A take-over of a long execution: from a snapshot, and from the whole journal when no snapshot can be read."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from deploy.audit.states import differences
from services.chassis.identity.named_tokens import NamedTokens
from services.chassis.lease.frames import Lease
from services.chassis.postgres.connection import BY_INDEX, PgConnection
from services.chassis.postgres.database import Database
from services.coordinator.app.journal_walks import JournalWalks
from services.coordinator.app.ports import SnapshotDamaged, Version
from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.effect_keys import EffectKeys
from services.coordinator.core.events import Event
from services.coordinator.core.fold import apply
from services.coordinator.core.state import Execution
from services.coordinator.store.codec import Stored
from services.coordinator.store.journal import LOADING, PostgresJournal, fold_journal, take_up
from services.coordinator.store.reads import PostgresReads
from services.coordinator.store.snapshots import restored
from tests.support.coordinator_stage import Stage, StageRunner, eventually
from tests.support.postgres import Database as MigratedDatabase
from tests.support.probe import some

ITEMS = 12
LOOP: Mapping[str, Any] = {
    "name": "w",
    "nodes": [
        {
            "id": "a",
            "module": "for_each@1",
            "config": {"items": list(range(ITEMS)), "maxParallel": 2, "body": {"module": "noop@1"}},
        }
    ],
}
# What a person or a fault, or another version of the coordinator, may have made of the stored snapshots.
SPOILT = {
    "sound": "UPDATE snapshots SET data = data WHERE execution_id = %s",
    "of another format": "UPDATE snapshots SET format = 'other' WHERE execution_id = %s",
    "damaged": "UPDATE snapshots SET data = set_bit(data, 99, 1 - get_bit(data, 99)) WHERE execution_id = %s",
    "without their first record": (
        "DELETE FROM snapshots s WHERE execution_id = %s AND last_seq ="
        " (SELECT min(last_seq) FROM snapshots f WHERE f.execution_id = s.execution_id)"
    ),
}


async def half_done(on_stage: Stage) -> tuple[str, StageRunner]:
    """A loop that has done half of its items. Its coordinator is replaced by another one."""
    first_address, first = await on_stage.coordinator("0", snapshot_events=5)
    runner = await on_stage.runner(first_address)
    runner.work = lambda grant: {} if len(runner.grants) <= ITEMS // 2 else None
    order = on_stage.start(first, on_stage.catalog.add("v-loop", **LOOP))
    await eventually(lambda: len(runner.grants) == ITEMS // 2 + 2)
    return order.lease.lease_id, runner


@pytest.mark.parametrize("spoilt", SPOILT)
async def test_the_next_holder_goes_on_whatever_has_become_of_the_snapshots(
    on_stage: Stage, tables: Database, spoilt: str
) -> None:
    id_, runner = await half_done(on_stage)
    assert await tables.execute(SPOILT[spoilt], (id_,))
    second_address, second = await on_stage.coordinator("1", snapshot_events=5)
    await on_stage.attach_also(runner, second_address)
    on_stage.start(second, "v-loop", id_=id_, resumed=True)
    held, runner.work = list(runner.grants[-2:]), lambda grant: {}
    for grant in held:
        runner.answer(grant, {})
    await eventually(lambda: id_ in on_stage.dispatcher.finished)
    assert len(runner.grants) == ITEMS, "S26: nothing is granted twice"


@asynccontextmanager
async def stored(database: MigratedDatabase) -> AsyncIterator[PostgresJournal]:
    url = database.url("coordinator")
    reader = PgConnection(url, name="r", settings=LOADING)
    yield PostgresJournal(PgConnection(url, name="w", settings=BY_INDEX), reader, reader)
    await reader.close()


async def test_a_take_over_reads_the_events_after_the_snapshot_alone(
    on_stage: Stage, tables: Database, database: MigratedDatabase
) -> None:
    id_, _ = await half_done(on_stage)
    lease = Lease(id_, 2**62)
    async with stored(database) as journal:
        (found,) = await journal.load([lease], is_patient=False)
    rows = await tables.fetch("SELECT events FROM journal WHERE execution_id = %s ORDER BY last_seq", (id_,))
    assert len(rows) > len(found.events)
    definition = compile_definition(LOOP)
    taken = take_up(id_, definition, found, 5)
    assert taken.log is not None
    assert differences(taken.execution, fold_journal(id_, definition, [row for (row,) in rows])) == []
    with pytest.raises(SnapshotDamaged):
        take_up(id_, definition, found._replace(snapshots=[found.snapshots[-1]._replace(data=b"none")]), 5)


class CountedReads(PostgresReads):
    """Counts the events that were read."""

    count = 0

    async def events(self, execution_id: str, *, after_seq: int, limit: int) -> Iterable[Stored]:
        found = list(await super().events(execution_id, after_seq=after_seq, limit=limit))
        self.count += len(found)
        return found


class OneDefinition:
    """Every version has the definition of the loop."""

    def __init__(self) -> None:
        self.version = Version(compile_definition(LOOP), EffectKeys(b"s" * 32), NamedTokens(b"s" * 32, "completion"))

    def cached(self, version_id: str) -> Version | None:
        return self.version

    async def get(self, version_id: str) -> Version:
        return self.version


@pytest.mark.parametrize("spoilt", SPOILT)
async def test_the_state_at_each_event_is_read_from_the_snapshot_before_it(
    on_stage: Stage, tables: Database, spoilt: str
) -> None:
    id_, _ = await half_done(on_stage)
    await tables.execute(SPOILT[spoilt], (id_,))
    wholes = "SELECT last_seq FROM snapshots WHERE execution_id = %s AND is_whole ORDER BY last_seq"
    whole_seqs = [seq for (seq,) in await tables.fetch(wholes, (id_,))]
    row = {"execution_id": id_, "version_id": "v-loop", "workspace": "w"}
    reads, definitions = CountedReads(tables), OneDefinition()
    walks = JournalWalks(reads, definitions, restored)
    folded = Execution(id_, definitions.version.definition)
    events = list(await PostgresReads(tables).events(id_, after_seq=0, limit=1_000))
    for _, seq, _, event in events:
        assert isinstance(event, Event)
        apply(folded, event)
        reads.count = 0
        assert differences(folded, some(await walks.state(row, seq))) == []
        if spoilt == "sound":
            assert len(whole_seqs) > 1
            begun_at = max((each for each in whole_seqs if each <= seq), default=0)
            assert reads.count == (0 if begun_at == seq else len(events) - begun_at)


async def is_held_by(tables: Database, id_: str, holder: str) -> bool:
    ((present,),) = await tables.fetch("SELECT holder FROM executions WHERE execution_id = %s", (id_,))
    return bool(present == holder)


async def test_the_take_over_after_one_that_found_a_damaged_snapshot_reads_snapshots_again(
    on_stage: Stage, tables: Database, database: MigratedDatabase
) -> None:
    id_, runner = await half_done(on_stage)
    await tables.execute(SPOILT["damaged"], (id_,))
    address, second = await on_stage.coordinator("1", snapshot_events=5)
    await on_stage.attach_also(runner, address)
    before = len(runner.grants)
    runner.work = lambda grant: {} if len(runner.grants) <= before + 2 else None
    on_stage.start(second, "v-loop", id_=id_, resumed=True)
    await eventually(lambda: is_held_by(tables, id_, "coordinator-1"))
    for grant in runner.grants[before - 2 : before]:
        runner.answer(grant, {})
    await eventually(lambda: len(runner.grants) == before + 4)
    async with stored(database) as journal:
        (found,) = await journal.load([Lease(id_, 2**62)], is_patient=False)
    assert found.snapshots
    taken = take_up(id_, compile_definition(LOOP), found, 5)
    assert taken.log is not None


async def test_snapshots_are_dropped_only_by_the_holder_of_the_execution(
    on_stage: Stage, database: MigratedDatabase
) -> None:
    id_, _ = await half_done(on_stage)
    async with stored(database) as journal:
        (later,) = await journal.load([Lease(id_, 2**62)], is_patient=False)
        (none,) = await journal.load([Lease(id_, 2**61)], is_patient=True, drops_snapshots=True)
        assert (none.events, none.snapshots) == ((), ())
        assert await journal.load([Lease(id_, 2**62)], is_patient=False) == [later]
        (dropped,) = await journal.load([Lease(id_, 2**62)], is_patient=True, drops_snapshots=True)
    assert len(dropped.events) > len(later.events)
    assert not dropped.snapshots
