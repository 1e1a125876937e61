"""Reads of the queue for lists and lookups, and the limits of workspaces."""

from collections.abc import Sequence
from typing import Any, Final

from services.chassis.postgres.arrays import Texts
from services.chassis.postgres.database import Database, Statement
from services.chassis.process.crash import crash_point
from services.dispatcher.core.items import QueuedRow, State, UsedRequest, WorkspaceLimits

_COLUMNS: Final = """
state, start, attempts, failure_reason, failure_message, failure_time
"""
_GET: Final = f"SELECT {_COLUMNS} FROM dispatcher.queue WHERE execution_id = ANY(%s::text[]::uuid[])"
_LIST: Final = """
SELECT {columns} FROM dispatcher.queue
WHERE workspace = %s {bound}
ORDER BY execution_id {order} LIMIT %s
"""
_REQUESTS: Final = """
SELECT request_id, hash, execution_id::text FROM dispatcher.requests
WHERE workspace = %s AND request_id = ANY(%s)
"""

_CONFIGURE: Final = """
INSERT INTO dispatcher.tenants AS t (workspace, executions_max, queued_max, revision, closed)
VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (workspace) DO UPDATE
SET executions_max = excluded.executions_max, queued_max = excluded.queued_max, revision = excluded.revision,
    closed = excluded.closed
WHERE t.revision < excluded.revision OR t.revision = excluded.revision AND t.closed IS DISTINCT FROM excluded.closed
"""

# Only what never started: an execution with a journal ends there. After the tenant's row is locked by the statement
# above, no batch lets anything of this workspace in or out.
_CLOSE: Final = """
UPDATE dispatcher.queue
SET state = 5, holder = NULL, wake_time = NULL, failure_reason = 'WORKSPACE_CLOSED',
    failure_message = 'the workspace was closed before the execution started', failure_time = clock_timestamp()
WHERE workspace = %s AND state IN (1, 4) AND (epoch = 0 OR attempts > 0)
RETURNING execution_id::text
"""


class PostgresQueueReads:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, execution_ids: Sequence[str]) -> list[QueuedRow]:
        rows = await self._database.fetch(_GET, (Texts(execution_ids),))
        return [_row(row) for row in rows]

    async def list_of(
        self, workspace: str, *, from_execution_id: str, is_ascending: bool, limit: int
    ) -> list[QueuedRow]:
        sign, order = (">", "ASC") if is_ascending else ("<", "DESC")
        bound = f"AND execution_id {sign} %s::uuid" if from_execution_id else ""
        params: list[Any] = [workspace, from_execution_id, limit] if from_execution_id else [workspace, limit]
        rows = await self._database.fetch(_LIST.format(columns=_COLUMNS, bound=bound, order=order), params)
        return [_row(row) for row in rows]

    async def requests(self, workspace: str, request_ids: Sequence[str]) -> list[UsedRequest]:
        rows = await self._database.fetch(_REQUESTS, (workspace, Texts(request_ids)))
        return [UsedRequest(*row) for row in rows]

    async def configure(self, workspace: str, limits: WorkspaceLimits, is_closed: bool) -> list[str]:
        """Store the limits; the executions that became dead messages because the workspace closed."""
        values = (workspace, limits.executions_max, limits.queued_max, limits.revision, is_closed)
        crash_point("dispatcher.configure.before_commit")
        statements: list[Statement] = [(_CONFIGURE, values)]
        if is_closed:
            statements.append((_CLOSE, (workspace,)))
        answers = await self._database.pipeline(statements)
        crash_point("dispatcher.configure.after_commit")
        return [row[0] for rows in answers for row in rows]


def _row(row: Sequence[Any]) -> QueuedRow:
    state, start, attempts, reason, message, time = row
    return QueuedRow(State(state), start, attempts, reason or "", message or "", time)
