"""Reads a whole installation in one snapshot and judges it.

It looks into all three schemas, which no service may: therefore it runs with the operator's own URL.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import orjson
import psycopg
from psycopg import IsolationLevel

from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.definition import Definition
from services.coordinator.core.events import Event, ExecutionStarted
from services.coordinator.core.evolve import evolve
from services.coordinator.core.projection import (
    EXECUTION_COLUMNS,
    RUN_COLUMNS,
    execution_row,
    run_row,
)
from services.coordinator.core.state import Execution
from services.coordinator.store.arrays import uuid_array
from services.coordinator.store.audit.findings import Findings
from services.coordinator.store.audit.journals import JournalJudge
from services.coordinator.store.codec import CorruptRecord, Stored, decode
from services.coordinator.store.columns import selected

Connection = psycopg.AsyncConnection[tuple[Any, ...]]

_BATCH: Final = 500
_RUN_ROW: Final = RUN_COLUMNS[1:]
_IDS: Final = """
SELECT DISTINCT execution_id::text FROM coordinator.journal WHERE execution_id > %s::uuid ORDER BY 1 LIMIT %s
"""
_EVENTS: Final = """
SELECT execution_id::text, seq, epoch, event FROM coordinator.journal
WHERE execution_id = ANY(%s::uuid[]) ORDER BY execution_id, seq
"""
_EXECUTIONS: Final = f"""
SELECT {selected("e", EXECUTION_COLUMNS)} FROM coordinator.executions e WHERE execution_id = ANY(%s::uuid[])
"""
_RUNS: Final = f"""
SELECT {selected("r", _RUN_ROW)} FROM coordinator.runs r WHERE execution_id = ANY(%s::uuid[])
ORDER BY execution_id, number
"""
_VERSION: Final = "SELECT workspace, definition FROM api.workflow_versions WHERE version_id = %s::uuid"


class Auditor:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._findings = Findings()
        self._versions: dict[str, tuple[str, Definition]] = {}
        self._request_keys: dict[tuple[str, str], str] = {}

    async def audit(self) -> Findings:
        await self._connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        async with self._connection.transaction():
            async for ids in self._batches():
                await self._judge(ids)
            await self._orphans()
            await self._admission()
        return self._findings

    async def _fetch(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return await (await self._connection.execute(sql, params, binary=True)).fetchall()

    async def _batches(self) -> AsyncIterator[list[str]]:
        last = "00000000-0000-0000-0000-000000000000"
        while ids := [row[0] for row in await self._fetch(_IDS, (last, _BATCH))]:
            yield ids
            last = ids[-1]

    async def _judge(self, ids: Sequence[str]) -> None:
        given = (uuid_array(ids),)
        journals: dict[str, list[tuple[int, int, bytes]]] = {}
        for id_, seq, epoch, event in await self._fetch(_EVENTS, given):
            journals.setdefault(id_, []).append((seq, epoch, event))
        executions = {row[0]: row for row in await self._fetch(_EXECUTIONS, given)}
        runs: dict[str, list[tuple[Any, ...]]] = {}
        for row in await self._fetch(_RUNS, given):
            runs.setdefault(row[0], []).append(row)
        for id_, records in journals.items():
            await self._judge_one(id_, records, executions.get(id_), runs.get(id_, []))

    async def _judge_one(
        self,
        id_: str,
        records: Sequence[tuple[int, int, bytes]],
        execution_row_: tuple[Any, ...] | None,
        run_rows: Sequence[tuple[Any, ...]],
    ) -> None:
        findings = self._findings
        stored = self._decoded(id_, records)
        if not stored or not isinstance(stored[0].event, ExecutionStarted):
            findings.broke("S1", f"{id_} does not begin with its start")
            return
        version = await self._version(stored[0].event, id_)
        if version is None:
            return
        self._requested_once(stored[0].event, id_)
        JournalJudge(id_, version, findings).judge(stored)
        known = [each.event for each in stored if isinstance(each.event, Event)]
        if len(known) < len(stored):
            return
        execution = Execution(id_, version)
        try:
            for event in known:
                evolve(execution, event)
        except Exception as failure:  # noqa: BLE001 - whatever it is, this journal does not fold
            findings.broke("S6", f"{id_} does not fold: {failure!r}")
            return
        self._compare(execution, execution_row_, run_rows)

    def _decoded(self, id_: str, records: Sequence[tuple[int, int, bytes]]) -> list[Stored]:
        decoded: list[Stored] = []
        for seq, epoch, data in records:
            try:
                record = decode(data)
            except CorruptRecord as corrupt:
                self._findings.broke("S6", f"{id_}/{seq}: {corrupt}")
                return []
            columns = (record.execution_id, record.seq, record.epoch)
            self._findings.check("S2", columns == (id_, seq, epoch), f"{id_}/{seq} holds {columns}")
            decoded.append(record)
        return decoded

    async def _version(self, start: ExecutionStarted, id_: str) -> Definition | None:
        if start.version_id not in self._versions:
            found = await self._fetch(_VERSION, (start.version_id,))
            if not found:
                self._findings.broke("S6", f"{id_}: version {start.version_id} is not there")
                return None
            workspace, document = found[0]
            self._versions[start.version_id] = workspace, compile_definition(orjson.loads(document))
        workspace, definition = self._versions[start.version_id]
        same = workspace == start.workspace
        self._findings.check("S12", same, f"{id_} of {start.workspace} runs a workflow of {workspace}")
        return definition

    def _requested_once(self, start: ExecutionStarted, id_: str) -> None:
        if start.request_id:
            first = self._request_keys.setdefault((start.workspace, start.request_id), id_)
            self._findings.check("S14", first == id_, f"{first} and {id_} have request_id {start.request_id}")

    def _compare(
        self, execution: Execution, row: tuple[Any, ...] | None, run_rows: Sequence[tuple[Any, ...]]
    ) -> None:
        id_ = execution.execution_id
        expected = _plain(EXECUTION_COLUMNS, execution_row(execution))
        actual = {} if row is None else _plain(EXECUTION_COLUMNS, row)
        # A holder that takes over raises the fence before its first record.
        fence = actual.pop("epoch", 0)
        self._findings.check("S2", fence >= expected.pop("epoch"), f"{id_}: the fence {fence} fell")
        self._findings.check("S6", actual == expected, f"{id_}: {_difference(expected, actual)}")
        folded = [_plain(_RUN_ROW, run_row(execution, run)[1:]) for run in execution.runs]
        found = [_plain(_RUN_ROW, each) for each in run_rows]
        self._findings.check("S6", len(folded) == len(found), f"{id_}: {len(found)} rows, {len(folded)} runs")
        for left, right in zip(folded, found, strict=False):
            self._findings.check("S6", left == right, f"{id_}.{left['number']}: {_difference(left, right)}")

    async def _orphans(self) -> None:
        """Rows of executions that have no journal at all."""
        for row in await self._fetch(_ORPHANS):
            self._findings.broke("S6", f"{row[0]} has a row and no journal")

    async def _admission(self) -> None:
        findings = self._findings
        for workspace, going, limit in await self._fetch(_GOING):
            findings.check("S13", going <= limit, f"{workspace} has {going} going, {limit} are allowed")
        for id_, is_known in await self._fetch(_ACKNOWLEDGED):
            findings.check("S4", is_known, f"{id_} was acknowledged and is nowhere")
        for id_, queue_epoch, journal_epoch in await self._fetch(_LEASED):
            holds = queue_epoch >= journal_epoch
            findings.check(
                "S3", holds, f"{id_}: granted under {queue_epoch}, journalled under {journal_epoch}"
            )
        for id_, holders in await self._fetch(_HELD):
            findings.check("S11", holders == 1, f"{id_} is leased {holders} times")


_ORPHANS: Final = """
SELECT e.execution_id::text FROM coordinator.executions e
WHERE NOT EXISTS (SELECT FROM coordinator.journal j WHERE j.execution_id = e.execution_id) LIMIT 10
"""
_GOING: Final = """
SELECT t.workspace, count(q.execution_id)::int, t.executions_max FROM dispatcher.tenants t
LEFT JOIN dispatcher.queue q ON q.workspace = t.workspace AND q.state IN (2, 3) AND NOT q.ends_only
GROUP BY t.workspace, t.executions_max
"""
# A request is remembered with the commit that acknowledged it.
_ACKNOWLEDGED: Final = """
SELECT r.execution_id::text,
    EXISTS (SELECT FROM dispatcher.queue q WHERE q.execution_id = r.execution_id)
    OR EXISTS (SELECT FROM coordinator.executions e WHERE e.execution_id = r.execution_id)
FROM dispatcher.requests r
"""
_LEASED: Final = """
SELECT q.execution_id::text, q.epoch, e.epoch FROM dispatcher.queue q
JOIN coordinator.executions e ON e.execution_id = q.execution_id
"""
_HELD: Final = """
SELECT execution_id::text, count(*)::int FROM dispatcher.queue WHERE state IN (2, 3) GROUP BY execution_id
"""


def _plain(columns: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    found = dict(zip(columns, row, strict=True))
    if "labels" in found:
        found["labels"] = dict(found["labels"])
    return {name: value or None if name.endswith("_time") else value for name, value in found.items()}


def _difference(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> str:
    """Names of columns and what stands in them, but no payload."""
    if not actual:
        return "the row is missing"
    apart = [name for name in expected if expected[name] != actual.get(name)]
    shown = {
        name: (expected[name], actual.get(name))
        for name in apart
        if not isinstance(expected[name], bytes) and not isinstance(actual.get(name), bytes)
    }
    return f"differs in {apart}, folded and stored: {shown}"
