"""The coordinator's journal does the same in memory and in PostgreSQL: what coordinators have asked of the one in a
simulated world, with its fenced appends and its take-overs, has the same answers from the other and leaves the same
rows. So what the simulation shows on the one holds for the other.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
import pytest_asyncio

from services.chassis.lease.frames import Lease
from services.chassis.postgres.connection import BY_INDEX, PgConnection
from services.chassis.postgres.database import Database
from services.coordinator.app.ports import Append, Fence, Loaded
from services.coordinator.core.projection import EXECUTION_COLUMNS
from services.coordinator.store.journal import LOADING, PostgresJournal
from services.coordinator.store.reads import PostgresReads
from tests.simulation import processes
from tests.simulation.world import simulate
from tests.support.memory_journal import JournalTables, MemoryJournal, MemoryReads
from tests.support.postgres import Database as MigratedDatabase

# No holder ever has it.
LAST_EPOCH = 2**40


class Recorder(MemoryJournal):
    """Keeps what it was asked, with its answers, in the order in which it took effect."""

    calls: list[tuple[Any, Any]]
    tables: JournalTables

    def __init__(self, tables: JournalTables, *given: Any, **more: Any) -> None:
        super().__init__(tables, *given, **more)
        Recorder.tables = tables

    def append_now(self, appends: Sequence[Append]) -> Mapping[int, Fence]:
        answer = super().append_now(appends)
        self.calls.append((appends, answer))
        return answer

    def load_now(self, leases: Sequence[Lease], *, drops_snapshots: bool = False) -> Sequence[Loaded]:
        answer = super().load_now(leases, drops_snapshots=drops_snapshots)
        self.calls.append((leases, answer))
        return answer


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def url(database: MigratedDatabase) -> str:
    return database.url("coordinator")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def journal(url: str) -> AsyncIterator[PostgresJournal]:
    writer = PgConnection(url, name="contract-journal", settings=BY_INDEX)
    reader = PgConnection(url, name="contract-loader", settings=LOADING)
    yield PostgresJournal(writer, reader, reader)
    await writer.close()
    await reader.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tables(url: str) -> AsyncIterator[Database]:
    opened = Database(url, name="contract", connections=1)
    yield opened
    await opened.close()


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of an execution, with JSON and mappings in one form."""
    values = {name: row[name] for name in (*EXECUTION_COLUMNS, "summary")}
    for name in ("labels", "summary"):
        value = values[name]
        values[name] = json.loads(value) if isinstance(value, str) else dict(value or {}) or None
    return values


@pytest.fixture(scope="module", params=range(200, 212))
def world(request: pytest.FixtureRequest) -> type[Recorder]:
    """What was asked in the world of a seed. It is simulated here, where no event loop runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "MemoryJournal", Recorder)
        Recorder.calls = []
        assert not simulate(request.param).violations
    return Recorder


async def test_both_journals_do_the_same(journal: PostgresJournal, tables: Database, world: type[Recorder]) -> None:
    for asked, answer in [call for call in world.calls if call[0]]:
        if isinstance(asked[0], Append):
            assert await journal.append(asked) == answer
        else:
            assert list(await journal.load(asked, is_patient=False)) == list(answer)
    ids = sorted(world.tables.executions)
    reads, in_memory = PostgresReads(tables), MemoryReads(world.tables)
    assert await reads.standings(ids) == await in_memory.standings(ids)
    names = sorted(world.tables.runs)
    assert await reads.run_standings(names) == await in_memory.run_standings(names)
    rows = {row["execution_id"]: plain(row) for row in await reads.executions(ids)}
    assert rows == {id_: plain(row) for id_, row in world.tables.executions.items()}
    leases = [Lease(id_, LAST_EPOCH) for id_ in ids]
    loaded = await MemoryJournal(world.tables).load(leases, is_patient=False)
    assert list(await journal.load(leases, is_patient=False)) == list(loaded)
    assert any(each.snapshots for each in loaded)
    dropped = await MemoryJournal(world.tables).load(leases, is_patient=True, drops_snapshots=True)
    assert list(await journal.load(leases, is_patient=True, drops_snapshots=True)) == list(dropped)
    assert not any(each.snapshots for each in dropped)
