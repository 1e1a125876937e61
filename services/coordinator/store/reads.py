"""What is read of executions, runs and journals: rows as mappings by column, in the forms of the core.

Every list is bounded and goes by primary key or by (workspace, execution_id).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from services.chassis.postgres.database import Database
from services.coordinator.app.ports import Mark, Standing
from services.coordinator.core.projection import EXECUTION_COLUMNS
from services.coordinator.store.arrays import uuid_array
from services.coordinator.store.columns import selected
from windlass.coordinator.v1.reads_pb2 import Condition

Row = Mapping[str, Any]


class RunPage(NamedTuple):
    rows: list[Row]
    # Shorter than it was asked for, since the outputs are large: there is more.
    is_cut: bool


EXECUTION_READ: Final = (*EXECUTION_COLUMNS, "summary")
_FINAL: Final = frozenset({"SUCCESS", "FAILED", "CANCELLED", "TIMEOUT"})

# Payloads are for those who ask for one: a list of large ones would not fit into memory.
_PAYLOADS: Final[Row] = {"input": b"", "output": None}
_LISTED: Final = tuple(column for column in EXECUTION_READ if column not in _PAYLOADS)

_EXECUTIONS: Final = f"""
SELECT {selected("e", EXECUTION_READ)} FROM executions e WHERE e.execution_id = ANY(%s::uuid[])
"""
_LIST: Final = f"""
SELECT {selected("e", _LISTED)} FROM executions e WHERE e.execution_id = ANY(%s::uuid[])
"""
_MARKS: Final = """
SELECT execution_id::text, last_seq, state FROM executions WHERE execution_id = ANY(%s::uuid[])
"""
_STANDINGS: Final = """
SELECT execution_id::text, workspace, state FROM executions WHERE execution_id = ANY(%s::uuid[])
"""
# A page of runs ends where its outputs, counted from its first, reach this: what a client takes by default, halved.
PAGE_BYTES: Final = 2 * 1024 * 1024
# For whoever would take a short page for the last one.
_UNCUT_BYTES: Final = 2**62
_LAST_ID: Final = "ffffffff-ffff-ffff-ffff-ffffffffffff"
# Rows of the journal that end after an event. Each holds at least one event.
_JOURNAL: Final = """
SELECT events FROM journal WHERE execution_id = %s AND last_seq > %s ORDER BY last_seq LIMIT %s
"""


class PostgresReads:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def executions(self, execution_ids: Sequence[str]) -> list[Row]:
        rows = await self._database.fetch(_EXECUTIONS, (uuid_array(execution_ids),))
        return [dict(zip(EXECUTION_READ, row, strict=True)) for row in rows]

    async def marks(self, execution_ids: Sequence[str]) -> Mapping[str, Mark]:
        rows = await self._database.fetch(_MARKS, (uuid_array(execution_ids),))
        return {found: Mark(last_seq, state in _FINAL) for found, last_seq, state in rows}

    async def standings(self, execution_ids: Sequence[str]) -> Mapping[str, Standing]:
        rows = await self._database.fetch(_STANDINGS, (uuid_array(execution_ids),))
        return {found: Standing(workspace, state in _FINAL) for found, workspace, state in rows}

    async def list_executions(
        self,
        workspace: str,
        conditions: Sequence[Condition],
        *,
        from_execution_id: str,
        is_ascending: bool,
        limit: int,
    ) -> list[Row]:
        # Loaded at the first list: SQLAlchemy is a second of a start, and 17 MB that a coordinator may never need.
        from services.coordinator.store.conditions import execution_list

        statement = execution_list(
            workspace,
            conditions,
            from_execution_id=from_execution_id,
            is_ascending=is_ascending,
            limit=limit,
        )
        rows = await self._database.select(statement)
        found = await self._database.fetch(_LIST, (uuid_array([row[0] for row in rows]),))
        listed = [{**dict(zip(_LISTED, row, strict=True)), **_PAYLOADS} for row in found]
        return sorted(listed, key=lambda row: row["execution_id"], reverse=not is_ascending)

    async def runs_of(
        self, execution_id: str, *, after: int, node: str, state: str, limit: int, may_cut: bool
    ) -> RunPage:
        """By their numbers."""
        given = {"execution_id": execution_id, "after": after, "most": limit}
        return await self._runs(given, node, state, _page_bytes(may_cut))

    async def runs_in(
        self, workspace: str, *, after: tuple[str, int], node: str, state: str, limit: int, may_cut: bool
    ) -> RunPage:
        """Newest execution first, inside it by their numbers."""
        execution_id, number = after
        given = {"execution_id": execution_id or _LAST_ID, "after": number, "most": limit}
        return await self._runs({**given, "workspace": workspace}, node, state, _page_bytes(may_cut))

    async def run(self, execution_id: str, number: int) -> Row | None:
        given = {"execution_id": execution_id, "after": number - 1, "most": 1}
        found = await self._runs(given, "", "", _UNCUT_BYTES)
        return found.rows[0] if found.rows and found.rows[0]["number"] == number else None

    async def _runs(self, given: Mapping[str, Any], node: str, state: str, bytes_most: int) -> RunPage:
        """Of a workspace, when one is given."""
        # Loaded at the first list, as above.
        from services.coordinator.store.run_pages import EXTRA, READ, run_page

        page = run_page(of_execution="workspace" not in given, with_node=bool(node), with_state=bool(state))
        wanted = {key: value for key, value in (("node", node), ("state", state)) if value}
        rows = await self._database.fetch(*page(bytes_most=bytes_most, **given, **wanted))
        is_cut = bool(rows) and rows[0][-1] > len(rows)
        return RunPage([dict(zip((*READ, *EXTRA), row[:-1], strict=True)) for row in rows], is_cut)

    async def journal(self, execution_id: str, *, after_seq: int, limit: int) -> list[bytes]:
        rows = await self._database.fetch(_JOURNAL, (execution_id, after_seq, limit))
        return [events for (events,) in rows]


def _page_bytes(may_cut: bool) -> int:
    return PAGE_BYTES if may_cut else _UNCUT_BYTES
