"""Reads executions, runs and journals. A row is a mapping by column name, in the forms of the core.

Every list is bounded and is read by primary key or by (workspace, execution_id).
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from services.chassis.postgres.database import Database
from services.coordinator.app.ports import (
    DeadLetterPlace,
    Row,
    RunName,
    RunOutput,
    RunPage,
    RunStanding,
    Snapshot,
    Standing,
)
from services.coordinator.core.events import ExecutionStarted
from services.coordinator.core.projection import APPROVAL_COLUMNS, EXECUTION_COLUMNS
from services.coordinator.core.recorded_rows import RowName
from services.coordinator.core.values import FINAL_STATES, OutputRef
from services.coordinator.store.codec import Stored, start_order, unseal
from services.coordinator.store.columns import selected, uuid_array
from services.coordinator.store.recorded_rows import recorded_rows
from services.coordinator.store.snapshots import FORMAT
from windlass.coordinator.v1.reads_pb2 import Condition, ListApprovalsRequest, ListExecutionsRequest

EXECUTION_READ: Final = (*EXECUTION_COLUMNS, "summary", "imported_execution_id")

# Lists come without payloads, because a list of large ones would not fit into memory.
_PAYLOADS: Final[Row] = {"input": b"", "output": None}
_LISTED: Final = tuple(column for column in EXECUTION_READ if column not in _PAYLOADS)

# The statements below are raw SQL, because waits and watches ask for them in coordinators that never list anything.
_EXECUTIONS: Final = f"""
SELECT {selected("e", EXECUTION_READ)} FROM executions e WHERE e.execution_id = ANY(%s::uuid[])
"""
_LIST: Final = f"""
SELECT {selected("e", _LISTED)} FROM executions e WHERE e.execution_id = ANY(%s::uuid[])
"""
_STANDINGS: Final = """
SELECT execution_id::text, workspace, last_seq, state FROM executions WHERE execution_id = ANY(%s::uuid[])
"""
_RUN_STANDINGS: Final = """
SELECT r.execution_id::text, r.number, r.epoch, r.instance_id, r.state IN ('LEASED', 'RUNNING'), r.is_taken_back
FROM runs r JOIN unnest(%s::uuid[], %s::int4[]) AS asked (execution_id, number) USING (execution_id, number)
"""
_RUN_OUTPUT: Final = """
SELECT e.workspace, r.state, r.attempt = 0 AND r.instance_id <> '', r.output, r.output_key, r.output_sha256,
       r.output_bytes
FROM runs r JOIN executions e USING (execution_id) WHERE r.execution_id = %s AND r.number = %s
"""
# A node has one row under way at most, except the items of a loop.
_RUNNING: Final = """
SELECT asked.execution_id::text, running.node
FROM unnest(%s::uuid[]) AS asked (execution_id), LATERAL (
    SELECT DISTINCT r.node FROM runs r
    WHERE r.execution_id = asked.execution_id AND r.state IN ('LEASED', 'RUNNING') ORDER BY r.node LIMIT %s
) running
"""
_RUNNING_MAX: Final = 100
_STORED_OUTPUT: Final = """
SELECT output_key, output_sha256, output_bytes FROM runs WHERE execution_id = %s AND output_key = %s LIMIT 1
"""
_APPROVALS: Final = f"""
SELECT {selected("a", APPROVAL_COLUMNS)} FROM approvals a
JOIN unnest(%s::uuid[], %s::int4[]) WITH ORDINALITY AS asked (execution_id, number, place) USING (execution_id, number)
ORDER BY asked.place
"""
_INPUT: Final = "SELECT input FROM executions WHERE execution_id = %s"
_IMPORTED_DEFINITION: Final = "SELECT imported_definition FROM executions WHERE execution_id = %s"
# A page of runs, or of events, ends where its outputs reach this size: half of what a client receives in one message by
# default.
PAGE_BYTES: Final = 2 * 1024 * 1024
# This is for callers that would take a short page for the last one.
_UNCUT_BYTES: Final = 2**62
_LAST_ID: Final = "ffffffff-ffff-ffff-ffff-ffffffffffff"
# Rows of the journal that end after an event. Each holds at least one event. PostgreSQL knows their lengths without
# reading them.
_JOURNAL: Final = """
SELECT events FROM (
  SELECT events, last_seq, sum(octet_length(events)) OVER (ORDER BY last_seq) - octet_length(events) AS bytes_before
  FROM journal WHERE execution_id = %s AND last_seq > %s ORDER BY last_seq LIMIT %s
) page WHERE bytes_before < %s ORDER BY last_seq
"""


# A row of the journal holds the text of each message id of its events.
_WITH_MESSAGE: Final = """
SELECT events FROM journal WHERE execution_id = %s AND position(%s::bytea IN events) > 0 ORDER BY last_seq
"""


# Each snapshot has all records before it.
_SNAPSHOT: Final = """
SELECT last_seq, format, is_whole, data FROM snapshots
WHERE execution_id = %(id)s AND format = %(format)s AND last_seq <= (
  SELECT max(last_seq) FROM snapshots
  WHERE execution_id = %(id)s AND format = %(format)s AND is_whole AND last_seq <= %(as_of)s
) ORDER BY last_seq
"""


class PostgresReads:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def executions(self, execution_ids: Sequence[str]) -> list[Row]:
        rows = await self._database.fetch(_EXECUTIONS, (uuid_array(execution_ids),))
        return [dict(zip(EXECUTION_READ, row, strict=True)) for row in rows]

    async def running_nodes(self, execution_ids: Sequence[str]) -> Mapping[str, list[str]]:
        """The nodes that are under way, by execution, at most 100 of each."""
        running: dict[str, list[str]] = {}
        for execution_id, node in await self._database.fetch(_RUNNING, (uuid_array(execution_ids), _RUNNING_MAX)):
            running.setdefault(execution_id, []).append(node)
        return running

    async def standings(self, execution_ids: Sequence[str]) -> Mapping[str, Standing]:
        rows = await self._database.fetch(_STANDINGS, (uuid_array(execution_ids),))
        return {id_: Standing(workspace, seq, state in FINAL_STATES) for id_, workspace, seq, state in rows}

    async def run_standings(self, names: Collection[RunName]) -> Mapping[RunName, RunStanding]:
        if not names:
            return {}
        ids, numbers = zip(*names, strict=True)
        rows = await self._database.fetch(_RUN_STANDINGS, (uuid_array(ids), list(numbers)))
        return {(id_, number): RunStanding(*standing) for id_, number, *standing in rows}

    async def run_output(self, execution_id: str, number: int) -> RunOutput | None:
        for workspace, state, is_rendering, output, *ref in await self._database.fetch(
            _RUN_OUTPUT, (execution_id, number)
        ):
            value = OutputRef(*ref) if ref[0] is not None else output
            return RunOutput(workspace, state, value, is_rendering)
        return None

    async def stored_output(self, execution_id: str, key: str) -> OutputRef | None:
        """The output with this key, if a run of the execution has it."""
        rows = await self._database.fetch(_STORED_OUTPUT, (execution_id, key))
        return OutputRef(*rows[0]) if rows else None

    async def input_of(self, execution_id: str) -> bytes | None:
        rows = await self._database.fetch(_INPUT, (execution_id,))
        return rows[0][0] if rows else None

    async def imported_definition(self, execution_id: str) -> bytes:
        """Canonical JSON. Empty: the execution ran here."""
        rows = await self._database.fetch(_IMPORTED_DEFINITION, (execution_id,))
        return rows[0][0] or b"" if rows else b""

    async def workspace_of(self, execution_id: str) -> str | None:
        standing = (await self.standings([execution_id])).get(execution_id)
        return None if standing is None else standing.workspace

    async def execution_names(self, request: ListExecutionsRequest) -> list[str]:
        """The ids of one page, in its order. Raises ValueError when a condition cannot be applied."""
        # Imported at the first list: SQLAlchemy costs a second and 17 MB, which many a coordinator never needs.
        from services.chassis.postgres.compiled import compiled
        from services.coordinator.store.conditions import execution_list

        return [row[0] for row in await self._database.fetch(*compiled(execution_list(request)))]

    async def listed_executions(self, execution_ids: Sequence[str]) -> list[Row]:
        """The executions with these ids as lists show them, in this order. Those that do not exist are left out."""
        rows = await self._database.fetch(_LIST, (uuid_array(execution_ids),))
        listed = [{**dict(zip(_LISTED, row, strict=True)), **_PAYLOADS} for row in rows]
        place = {execution_id: number for number, execution_id in enumerate(execution_ids)}
        return sorted(listed, key=lambda row: place[row["execution_id"]])

    async def approval_names(self, request: ListApprovalsRequest, after: tuple[str, int]) -> list[RunName]:
        """The runs of one page of approvals, in its order. Raises ValueError when a condition cannot be applied."""
        # Imported at the first list, as above.
        from services.chassis.postgres.compiled import compiled
        from services.coordinator.store.conditions import approval_list

        return [(row[0], row[1]) for row in await self._database.fetch(*compiled(approval_list(request, after)))]

    async def approvals(self, names: Sequence[RunName]) -> list[Row]:
        """The approvals with these runs, in this order. Those that do not exist are left out."""
        if not names:
            return []
        ids, numbers = zip(*names, strict=True)
        rows = await self._database.fetch(_APPROVALS, (uuid_array(ids), list(numbers)))
        return [dict(zip(APPROVAL_COLUMNS, row, strict=True)) for row in rows]

    async def runs(
        self, workspace: str | None, *, after: tuple[str, int], node: str, state: str, limit: int, may_cut: bool
    ) -> RunPage:
        """The runs after (execution id, number): those of the execution, or of a workspace, newest execution first."""
        # Imported at the first list, as above.
        from services.coordinator.store.run_pages import EXTRA, READ, run_page

        page = run_page(of_execution=workspace is None, with_node=bool(node), with_state=bool(state))
        given: dict[str, Any] = {key: value for key, value in (("node", node), ("state", state)) if value}
        if workspace is not None:
            given["workspace"] = workspace
        execution_id, number = after
        given |= {"execution_id": execution_id or _LAST_ID, "after": number, "most": limit}
        rows = await self._database.fetch(*page(bytes_most=PAGE_BYTES if may_cut else _UNCUT_BYTES, **given))
        is_cut = bool(rows) and rows[0][-1] > len(rows)
        return RunPage([dict(zip((*READ, *EXTRA), row[:-1], strict=True)) for row in rows], is_cut)

    async def events(self, execution_id: str, *, after_seq: int, limit: int) -> Iterable[Stored]:
        """The events of at most `limit` appends, from the append that holds the event after `after_seq`. Large ones are
        fewer, but at least one."""
        rows = await self.appends(execution_id, after_seq=after_seq, limit=limit)
        return itertools.chain.from_iterable(map(unseal, rows))

    async def appends(self, execution_id: str, *, after_seq: int, limit: int) -> list[bytes]:
        """The same events as rows of the journal, which nobody has read."""
        rows = await self._database.fetch(_JOURNAL, (execution_id, after_seq, limit, PAGE_BYTES))
        return [events for (events,) in rows]

    async def snapshot_records(self, execution_id: str, as_of_seq: int) -> Sequence[Snapshot]:
        """The records of the newest snapshot that this version can read, of this event or an earlier one."""
        given = {"id": execution_id, "format": FORMAT, "as_of": as_of_seq}
        return [Snapshot(*row) for row in await self._database.fetch(_SNAPSHOT, given)]

    def recorded_rows(self, execution_id: str) -> AsyncIterator[tuple[RowName, Mapping[str, Any]]]:
        """The rows of the execution, of its runs, approvals and dead letters, in their order."""
        return recorded_rows(self._database, execution_id)

    async def appends_with(self, execution_id: str, message_id: str) -> Iterable[Stored]:
        """The events of the appends that hold this message id."""
        rows = await self._database.fetch(_WITH_MESSAGE, (execution_id, message_id.encode()))
        return itertools.chain.from_iterable(unseal(events) for (events,) in rows)

    async def start_order(self, execution_id: str) -> bytes | None:
        """The StartOrder with which the execution was started."""
        for stored in await self.events(execution_id, after_seq=0, limit=1):
            return start_order(execution_id, stored.event) if isinstance(stored.event, ExecutionStarted) else None
        return None

    async def dead_letter(self, workspace: str, execution_id: str, number: int) -> Row | None:
        # Imported at the first use, as for lists.
        from services.chassis.postgres.compiled import compiled
        from services.coordinator.store import dead_letters

        rows = await self._database.fetch(*compiled(dead_letters.one(workspace, execution_id, number)))
        return dict(zip(dead_letters.READ, rows[0], strict=True)) if rows else None

    async def dead_letter_page(
        self,
        workspace: str,
        conditions: Sequence[Condition],
        after: DeadLetterPlace | None,
        limit: int,
        *,
        is_ascending: bool,
    ) -> list[Row]:
        """Raises ValueError when a condition cannot be applied."""
        from services.chassis.postgres.compiled import compiled
        from services.coordinator.store import dead_letters

        page = dead_letters.page(workspace, conditions, after, limit, is_ascending=is_ascending)
        rows = await self._database.fetch(*compiled(page))
        return [dict(zip(dead_letters.READ, row, strict=True)) for row in rows]

    async def dead_letter_groups(self, workspace: str, conditions: Sequence[Condition], limit: int) -> list[Row]:
        """The newest of each group, with the count, the times and the workflows of the group."""
        from services.chassis.postgres.compiled import compiled
        from services.coordinator.store import dead_letters

        rows = await self._database.fetch(*compiled(dead_letters.groups(workspace, conditions, limit)))
        return [dict(zip((*dead_letters.READ, *dead_letters.GROUPED), row, strict=True)) for row in rows]
