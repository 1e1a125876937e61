"""A journal that a newer version wrote to waits for a coordinator that can read it, and holds up nobody."""

import zlib
from typing import Any

import pytest

from services.chassis.postgres.database import Database
from services.coordinator.app import journal_loader
from services.coordinator.store.codec import SCHEMA_VERSION
from tests.integration.coordinator.test_broken_executions import SLEEP, goes_on, reports_of
from tests.integration.coordinator.test_running_executions import line
from tests.support.coordinator_stage import Stage, eventually
from windlass.journal.v1.journal_pb2 import Append

# An event (field 6 of an append) that is field 99 of the oneof, length-delimited: {1: 7}.
NEWER_EVENT = b"\x32\x05\x9a\x06\x02\x08\x07"


async def rows_of(tables: Database, execution_id: str) -> list[Any]:
    """All columns except the fence, which every reader raises first."""
    wanted = {"journal": "to_jsonb(t)", "executions": "to_jsonb(t) - 'epoch'", "runs": "to_jsonb(t)"}
    return [
        await tables.fetch(f"SELECT {row} FROM {table} t WHERE execution_id = %s ORDER BY 1", (execution_id,))
        for table, row in wanted.items()
    ]


async def append_newer(tables: Database, execution_id: str) -> None:
    """Append an event as a newer coordinator that held the execution meanwhile."""
    ((last_seq, epoch),) = await tables.fetch(
        "SELECT last_seq, epoch FROM executions WHERE execution_id = %s", (execution_id,)
    )
    seq = last_seq + 1
    append = Append(schema_version=SCHEMA_VERSION, execution_id=execution_id, first_seq=seq, epoch=epoch, time=1)
    body = append.SerializeToString() + NEWER_EVENT
    sealed = body + b"\x7d" + zlib.crc32(body).to_bytes(4, "little")
    await tables.execute("INSERT INTO journal VALUES (%s, %s, %s, %s)", (execution_id, seq, epoch, sealed))
    await tables.execute("UPDATE executions SET last_seq = %s WHERE execution_id = %s", (seq, execution_id))


async def test_event_of_a_newer_version_gives_its_execution_back_unharmed_and_others_go_on(
    on_stage: Stage, tables: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_loader, "REST_SECONDS", 0.0)
    rest = on_stage.catalog.add("v-rest", name="w", nodes=[{**SLEEP, "config": {"duration": "3600s"}}], edges=[])
    session, _ = await on_stage.with_runner()
    newer = on_stage.dispatcher.order(rest)
    id_ = newer.lease.lease_id
    on_stage.dispatcher.grant(session, [newer])
    await eventually(lambda: reports_of(on_stage, newer, "parked"))
    await append_newer(tables, id_)
    before = await rows_of(tables, id_)
    assert len(before[0]) == 2

    other = on_stage.dispatcher.order(on_stage.catalog.add("v-line", **line(2)))
    again = on_stage.dispatcher.order(rest, id_=id_, resumed=True)
    on_stage.dispatcher.grant(session, [again, other])
    await eventually(lambda: reports_of(on_stage, newer, "released"))
    await eventually(lambda: other.lease.lease_id in on_stage.dispatcher.finished)
    # It is no failure, so the execution is never given up, however often it comes back.
    (released,) = reports_of(on_stage, newer, "released")
    assert (released.failed, released.permanent, released.reason) == (False, False, "EVENT_UNKNOWN")
    assert await rows_of(tables, id_) == before
    assert id_ not in on_stage.dispatcher.finished
    assert goes_on(on_stage)
