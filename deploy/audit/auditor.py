"""Reads a whole installation and judges it: every journal and its rows, then what spans the services.

It reads all three schemas, which no service may do, so it runs with the operator's own URL.

Hazard: the caller's transaction must see one snapshot (REPEATABLE READ). Otherwise a row that changes between two
statements looks like a broken promise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson
import psycopg
from psycopg import IsolationLevel

from deploy.audit import admission
from deploy.audit.findings import Findings
from deploy.audit.journals import AuditedGrant, JournalJudge
from deploy.audit.projections import compare, compare_dead_letters
from deploy.audit.states import differences
from services.chassis.postgres.connection import Connection
from services.chassis.postgres.raw_pipeline import Rows
from services.coordinator.app.ports import Snapshot, SnapshotDamaged
from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.definition import Definition
from services.coordinator.core.events import Event, ExecutionStarted
from services.coordinator.core.fold import apply
from services.coordinator.core.projection import APPROVAL_COLUMNS, DEAD_LETTER_COLUMNS, EXECUTION_COLUMNS, RUN_COLUMNS
from services.coordinator.core.state import Execution
from services.coordinator.core.values import Origin
from services.coordinator.store.codec import CorruptRecord, Stored, unseal
from services.coordinator.store.columns import selected, uuid_array
from services.coordinator.store.snapshots import FORMAT, restored, whole

CONNECT_SECONDS: Final = 10
_BATCH: Final = 500
_FIRST_ID: Final = "00000000-0000-0000-0000-000000000000"
# The order is that of the primary key itself. An order by its text would sort the whole table for every batch.
_EXECUTIONS: Final = f"""
SELECT {selected("e", EXECUTION_COLUMNS)} FROM coordinator.executions e
WHERE e.execution_id > %s::uuid ORDER BY e.execution_id LIMIT %s
"""
_EVENTS: Final = """
SELECT execution_id::text, last_seq, epoch, events FROM coordinator.journal
WHERE execution_id = ANY(%s::uuid[]) ORDER BY execution_id, last_seq
"""
_RUNS: Final = f"""
SELECT {selected("r", RUN_COLUMNS)} FROM coordinator.runs r WHERE execution_id = ANY(%s::uuid[])
ORDER BY execution_id, number
"""
_APPROVALS: Final = f"""
SELECT {selected("a", APPROVAL_COLUMNS)} FROM coordinator.approvals a WHERE execution_id = ANY(%s::uuid[])
ORDER BY execution_id, number
"""
_DEAD_LETTERS: Final = f"""
SELECT {selected("d", DEAD_LETTER_COLUMNS)} FROM coordinator.dead_letters d WHERE execution_id = ANY(%s::uuid[])
ORDER BY execution_id, number
"""
# Those that this version can read.
_SNAPSHOTS: Final = """
SELECT execution_id::text, last_seq, format, is_whole, data FROM coordinator.snapshots
WHERE execution_id = ANY(%s::uuid[]) AND format = %s ORDER BY execution_id, last_seq
"""
_ALIEN: Final = """
SELECT DISTINCT t.execution_id::text FROM (
    SELECT execution_id FROM coordinator.journal UNION ALL SELECT execution_id FROM coordinator.runs
    UNION ALL SELECT execution_id FROM coordinator.approvals UNION ALL SELECT execution_id FROM coordinator.snapshots
) t
WHERE NOT EXISTS (SELECT FROM coordinator.executions e WHERE e.execution_id = t.execution_id)
"""
_VERSION: Final = (
    "SELECT workspace, definition, template_references FROM api.workflow_versions WHERE version_id = %s::uuid"
)
# The copies of executions that ran elsewhere. They bring their definition, and the grants of another installation.
_IMPORTS: Final = """
SELECT execution_id::text, workspace, imported_definition, imported_references FROM coordinator.executions
WHERE execution_id = ANY(%s::uuid[]) AND imported_execution_id <> ''
"""
_LIVE: Final = "SELECT instance_id FROM coordinator.runner_sessions WHERE state = 'LIVE'"


_CIRCUITS: Final = "SELECT workspace || ' ' || target, state, jsonb_array_length(permits) FROM coordinator.circuits"


async def report(operator_url: str, say: Callable[[str], None]) -> int:
    """Returns 0 if every promise that rows can show is kept, 1 if one is broken."""
    async with await psycopg.AsyncConnection.connect(operator_url, connect_timeout=CONNECT_SECONDS) as connection:
        await connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        async with connection.transaction():
            findings = await Auditor(connection).audit()
    for line in findings.lines():
        say(orjson.dumps(line).decode())
    return 1 if findings.broken_count else 0


class Auditor:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._findings = Findings()
        self._versions: dict[str, tuple[str, Definition]] = {}
        # By the id of the copy.
        self._imports: dict[str, tuple[str, Definition]] = {}
        self._live_instances: set[str] = set()
        # The execution of each grant, by the number of the grant. No two grants ever have the same number.
        self._granted: dict[int, str] = {}
        # The newest grant of each execution that is not final.
        self._holders: dict[str, AuditedGrant] = {}

    async def audit(self) -> Findings:
        self._live_instances = {row[0] for row in await self._fetch(_LIVE)}
        last = _FIRST_ID
        while rows := await self._fetch(_EXECUTIONS, (last, _BATCH)):
            await self._judge(rows)
            last = rows[-1][0]
        for (id_,) in await self._fetch(_ALIEN):
            self._findings.broke("S6", f"{id_} has events or runs, and no row of its own")
        for where, state, permits in await self._fetch(_CIRCUITS):
            has_leaked = state != "HALF_OPEN" and permits
            self._findings.check("S20", not has_leaked, f"{where} is {state} and has {permits} permits")
        await admission.judge(self._fetch, self._holders, self._findings)
        return self._findings

    async def _fetch(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return await (await self._connection.execute(sql, params, binary=True)).fetchall()

    async def _judge(self, rows: Rows) -> None:
        ids = (uuid_array([row[0] for row in rows]),)
        journals, runs = _by_id(await self._fetch(_EVENTS, ids)), _by_id(await self._fetch(_RUNS, ids))
        approvals = _by_id(await self._fetch(_APPROVALS, ids))
        dead_letters = _by_id(await self._fetch(_DEAD_LETTERS, ids))
        snapshots = _by_id(await self._fetch(_SNAPSHOTS, (*ids, FORMAT)))
        self._imports = {
            id_: (workspace, compile_definition(orjson.loads(document), orjson.loads(references)))
            for id_, workspace, document, references in await self._fetch(_IMPORTS, ids)
        }
        for row in rows:
            execution = await self._judge_one(
                row[0],
                journals[row[0]],
                row,
                runs[row[0]],
                approvals[row[0]],
                whole([Snapshot(*each[1:]) for each in snapshots[row[0]]]),
            )
            if execution is not None and row[0] not in self._imports:
                compare_dead_letters(execution, dead_letters[row[0]], self._findings)

    async def _judge_one(
        self,
        id_: str,
        records: Rows,
        row: tuple[Any, ...],
        run_rows: Rows,
        approval_rows: Rows,
        snapshots: Sequence[Snapshot],
    ) -> Execution | None:
        """A journal that breaks a promise is not folded, or one breach would look like many."""
        findings, before = self._findings, self._findings.broken_count
        stored = self._decoded(id_, records)
        if findings.broken_count > before:
            return None
        if not stored or not isinstance(stored[0].event, ExecutionStarted):
            findings.broke("S1", f"{id_} does not begin with its start")
            return None
        definition = await self._definition(stored[0].event.origin, id_)
        if definition is None:
            return None
        judge = JournalJudge(id_, definition, self._live_instances, findings)
        judge.judge(stored)
        if id_ not in self._imports:
            self._granted_once(id_, judge.grants)
        events = [each.event for each in stored if isinstance(each.event, Event)]
        if findings.broken_count > before or len(events) < len(stored):
            return None
        execution = Execution(id_, definition)
        try:
            for event in events:
                apply(execution, event)
                if snapshots and execution.seq == snapshots[-1].last_seq:
                    self._compare_snapshot(execution, snapshots)
        except Exception as failure:  # noqa: BLE001 - whatever it is, this journal does not fold
            findings.broke("S6", f"{id_} does not fold: {failure!r}")
            return None
        compare(execution, row, run_rows, approval_rows, findings)
        if not execution.is_final and id_ not in self._imports:
            self._holders[id_] = judge.grants[-1]
        return execution

    def _compare_snapshot(self, execution: Execution, records: Sequence[Snapshot]) -> None:
        id_, seq = execution.execution_id, execution.seq
        try:
            apart = differences(execution, restored(id_, execution.definition, records))
        except SnapshotDamaged as damaged:
            self._findings.broke("S6", f"{id_}: the snapshot of event {seq} cannot be read: {damaged}")
        else:
            self._findings.check("S6", not apart, f"{id_}: the snapshot of event {seq} differs in {apart}")

    def _decoded(self, id_: str, records: Rows) -> list[Stored]:
        decoded: list[Stored] = []
        for _, last_seq, epoch, data in records:
            try:
                appended = unseal(data)
            except CorruptRecord as corrupt:
                self._findings.broke("S6", f"{id_}/{last_seq}: {corrupt}")
                return []
            place = f"{appended[-1].execution_id}/{appended[-1].seq}" if appended else "nothing"
            if place != f"{id_}/{last_seq}":
                self._findings.broke("S1", f"{id_}/{last_seq} holds the events up to {place}")
            for record in appended:
                where = f"{id_}/{record.seq}"
                self._findings.check("S2", record.epoch == epoch, f"{where}: {epoch}, in it {record.epoch}")
            decoded += appended
        return decoded

    async def _definition(self, start: Origin, id_: str) -> Definition | None:
        if id_ in self._imports:
            workspace, definition = self._imports[id_]
            self._findings.check("S12", workspace == start.workspace, f"{id_} of {start.workspace} is in {workspace}")
            return definition
        if start.version_id not in self._versions:
            found = await self._fetch(_VERSION, (start.version_id,))
            if not found:
                self._findings.broke("S6", f"{id_}: version {start.version_id} is not there")
                return None
            workspace, document, references = found[0]
            definition = compile_definition(orjson.loads(document), orjson.loads(references))
            self._versions[start.version_id] = workspace, definition
        workspace, definition = self._versions[start.version_id]
        same = workspace == start.workspace
        self._findings.check("S12", same, f"{id_} of {start.workspace} runs a workflow of {workspace}")
        return definition

    def _granted_once(self, id_: str, grants: Sequence[AuditedGrant]) -> None:
        """Finds grants of other executions with the same number. JournalJudge compares those within one journal."""
        for grant in grants:
            other = self._granted.setdefault(grant.epoch, id_)
            if other != id_:
                self._findings.broke("S3", f"{other} and {id_} were both granted under {grant.epoch}")


def _by_id(rows: Rows) -> defaultdict[str, list[tuple[Any, ...]]]:
    """The rows of each execution. Their first column is its id."""
    found = defaultdict(list)
    for row in rows:
        found[row[0]].append(row)
    return found
