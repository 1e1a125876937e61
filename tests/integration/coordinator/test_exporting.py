"""An export of a long journal is read and sent part by part, and its recorded rows are those of the tables."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.chassis.blobs import DirectoryBlobs, blob_ref, month_of
from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.postgres.database import Database
from services.chassis.process.clock import SystemClock
from services.coordinator.app.replays import Replays
from services.coordinator.core.events import NOTHING_FOLLOWS, RunProgressed, RunSucceeded
from services.coordinator.core.values import OutputRef, WorkKey
from services.coordinator.rpc.replays import ReplayServicer
from services.coordinator.store import codec
from services.coordinator.store.reads import PostgresReads
from tests.integration.coordinator.test_history import NOW, id_of, store
from tests.support.postgres import PostgresCluster
from windlass.coordinator.v1 import replays_pb2 as pb

EVENTS = 100_000
EVENTS_PER_APPEND = 100
MESSAGE = "x" * 400


@pytest_asyncio.fixture(loop_scope="session")
async def tables(postgres: PostgresCluster) -> Any:
    made = await postgres.database(migrated=True)
    opened = Database(made.url("coordinator"), name="test", connections=2)
    yield opened
    await opened.close()
    await postgres.drop(made)


def servicer(tables: Database, folder: Path) -> ReplayServicer:
    reads = PostgresReads(tables)
    nothing: Any = None
    return ReplayServicer(
        reads, Replays(reads, nothing, SystemClock()), codec, DirectoryBlobs(folder), SystemClock(), nothing, nothing
    )


async def parts(served: ReplayServicer, execution_id: str) -> Any:
    async for response in served.ExportJournal(pb.ExportJournalRequest(execution_id=execution_id), None):
        for part in response.parts:
            yield part


async def test_an_export_of_100_000_events_holds_few_of_them(tables: Database, tmp_path: Path) -> None:
    execution_id = await store(tables, NOW, None)
    event = codec.encode_event(RunProgressed(1, WorkKey("a"), 1, 0.5, MESSAGE, b""))
    await tables.execute("DELETE FROM journal WHERE execution_id = %s", (execution_id,))
    for first in range(1, EVENTS, EVENTS_PER_APPEND):
        sealed = codec.seal(execution_id, first, 1, 1, [event] * EVENTS_PER_APPEND)
        last = first + EVENTS_PER_APPEND - 1
        await tables.execute("INSERT INTO journal VALUES (%s, %s, 1, %s)", (execution_id, last, sealed))
    await tables.execute("UPDATE executions SET last_seq = %s, state = 'RUNNING'", (EVENTS,))
    size_bytes = EVENTS * len(event)
    tracemalloc.start()
    try:
        seqs = [part.event.seq async for part in parts(servicer(tables, tmp_path), execution_id) if part.event.seq]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seqs == list(range(1, EVENTS + 1))
    assert peak_bytes < size_bytes / 2, f"{peak_bytes} bytes were held at once of {size_bytes}"


async def test_the_rows_of_an_ended_execution_are_exported_without_their_payloads(
    tables: Database, tmp_path: Path
) -> None:
    execution_id = await store(tables, NOW, NOW, 1)
    await tables.execute("DELETE FROM journal WHERE execution_id = %s", (execution_id,))
    event = codec.encode_event(RunProgressed(1, WorkKey("a"), 1, 0.5, "", b""))
    sealed = codec.seal(execution_id, 1, 1, 1, [event])
    await tables.execute("INSERT INTO journal VALUES (%s, 1, 1, %s)", (execution_id, sealed))
    await tables.execute("UPDATE executions SET state = 'SUCCESS', output = 'secret words'")
    rows = [part.row async for part in parts(servicer(tables, tmp_path), execution_id) if part.row.table]
    assert [(row.table, row.number) for row in rows] == [("executions", 0), ("runs", 1)]
    columns = json.loads(rows[0].columns)
    assert columns["output"].startswith("sha256:")
    assert "secret" not in rows[0].columns
    assert "epoch" not in columns


async def test_an_output_store_that_is_away_is_told_as_such(tables: Database, tmp_path: Path) -> None:
    execution_id = await store(tables, NOW, None, 2)
    ref = OutputRef(*blob_ref("w", month_of(execution_id), "0" * 64, 1))
    event = codec.encode_event(RunSucceeded(1, WorkKey("a"), 1, ref, "", 1, 1, b"", b"", 0, NOTHING_FOLLOWS))
    await tables.execute("DELETE FROM journal WHERE execution_id = %s", (execution_id,))
    sealed = codec.seal(execution_id, 1, 1, 1, [event])
    await tables.execute("INSERT INTO journal VALUES (%s, 1, 1, %s)", (execution_id, sealed))
    await tables.execute("UPDATE executions SET state = 'RUNNING' WHERE execution_id = %s", (execution_id,))
    (no_folder := tmp_path / "file").write_text("")
    with pytest.raises(DependencyUnavailable, match="the output store"):
        async for _ in parts(servicer(tables, no_folder / "store"), execution_id):
            pass


async def test_an_execution_that_is_unknown_has_no_parts(tables: Database, tmp_path: Path) -> None:
    assert [part async for part in parts(servicer(tables, tmp_path), id_of(NOW, 7))] == []
