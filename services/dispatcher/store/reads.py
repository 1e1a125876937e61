"""Reads of the queue for lists and lookups, and the limits of workspaces."""

import functools
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Text, and_, any_, bindparam, cast, func, or_, select, update
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by, insert

from services.chassis.postgres.arrays import Texts
from services.chassis.postgres.compiled import Composed
from services.chassis.postgres.database import Database, Statement
from services.chassis.process.crash import crash_point
from services.dispatcher.core.items import QueuedRow, QueuePlace, State, UsedRequest, WorkspaceLimits
from services.dispatcher.store.tables import execution_id_text, is_asked_for, is_in, mailbox, queue, requests, tenants

# The columns of a QueuedRow.
COLUMNS: Final = [
    queue.c[name]
    for name in (
        "state",
        "start",
        "attempts",
        "failure_reason",
        "failure_message",
        "failure_time",
        "resolution",
        "reviewer",
        "notes",
        "resolve_time",
        "begun",
    )
]
# Commands of people are short; signals with large payloads are not shown before they are read.
_SHOWN_MESSAGES_MAX: Final = 20
_SHOWN_BYTES_MAX: Final = 4_096
_LAST: Final = (
    select(mailbox.c.body, mailbox.c.create_time, mailbox.c.message_id)
    .where(
        mailbox.c.execution_id == queue.c.execution_id,
        queue.c.state == int(State.PENDING),
        func.octet_length(mailbox.c.body) <= _SHOWN_BYTES_MAX,
    )
    .order_by(mailbox.c.create_time.desc(), mailbox.c.message_id.desc())
    .limit(_SHOWN_MESSAGES_MAX)
    .correlate(queue)
    .subquery()
)
_UNREAD: Final = select(
    func.array_agg(aggregate_order_by(_LAST.c.body, _LAST.c.create_time, _LAST.c.message_id))
).scalar_subquery()
_GET: Final = Composed(select(*COLUMNS, _UNREAD).where(is_asked_for))
_REQUESTS: Final = Composed(
    select(requests.c.request_id, requests.c.hash, cast(requests.c.execution_id, Text)).where(
        requests.c.workspace == bindparam("workspace"),
        requests.c.request_id == any_(bindparam("request_ids", type_=ARRAY(Text))),
    )
)


@functools.cache
def _page(*, is_ascending: bool, is_first: bool) -> Composed:
    key = queue.c.execution_id
    statement = select(*COLUMNS, _UNREAD).where(queue.c.workspace == bindparam("workspace"))
    if not is_first:
        start = bindparam("from_execution_id", type_=key.type)
        statement = statement.where(key > start if is_ascending else key < start)
    return Composed(statement.order_by(key.asc() if is_ascending else key.desc()).limit(bindparam("limit")))


_HOLDERS_SHOWN: Final = 5
# This is raw SQL, because the order of the claim compares rows by three columns.
_PLACE: Final = f"""
SELECT q.state, q.enqueue_time, q.wake_time,
       CASE WHEN q.state = 1 AND NOT q.ends_only THEN (
         SELECT count(*) FROM dispatcher.queue o
         WHERE o.workspace = q.workspace AND o.state = 1 AND NOT o.ends_only
           AND (NOT o.urgent, o.order_time, o.execution_id) < (NOT q.urgent, q.order_time, q.execution_id)
       ) ELSE 0 END,
       (SELECT count(*) FROM dispatcher.queue g
        WHERE g.workspace = q.workspace AND g.state IN (2, 3) AND NOT g.ends_only),
       coalesce(t.executions_max, 0),
       ARRAY(SELECT g.execution_id::text FROM dispatcher.queue g
             WHERE g.workspace = q.workspace AND g.state IN (2, 3) AND NOT g.ends_only
             ORDER BY g.granted_time LIMIT {_HOLDERS_SHOWN})
FROM dispatcher.queue q LEFT JOIN dispatcher.tenants t USING (workspace)
WHERE q.execution_id = %s::text::uuid AND q.workspace = %s
"""

_LIMITS: Final = ("executions_max", "queued_max", "revision", "closed")
_NEW: Final = insert(tenants).values({name: bindparam(name) for name in ("workspace", *_LIMITS)})
_CONFIGURE: Final = Composed(
    _NEW.on_conflict_do_update(
        index_elements=[tenants.c.workspace],
        set_={name: _NEW.excluded[name] for name in _LIMITS},
        where=or_(
            tenants.c.revision < _NEW.excluded.revision,
            and_(tenants.c.revision == _NEW.excluded.revision, tenants.c.closed.is_distinct_from(_NEW.excluded.closed)),
        ),
    )
)

# Ends only executions that never started; the coordinator ends those with a journal. The statement above has locked the
# tenant's row, so no batch adds or admits an execution of this workspace.
_CLOSE: Final = Composed(
    update(queue)
    .where(
        queue.c.workspace == bindparam("of_workspace"),
        is_in(State.PENDING, State.PARKED),
        or_(queue.c.epoch == 0, queue.c.attempts > 0),
    )
    .values(
        state=int(State.FAILED),
        holder=None,
        wake_time=None,
        failure_reason="WORKSPACE_CLOSED",
        failure_message="the workspace was closed before the execution started",
        failure_time=func.clock_timestamp(),
        parent_told=False,
    )
    .returning(execution_id_text)
)


class PostgresQueueReads:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, execution_ids: Sequence[str]) -> list[QueuedRow]:
        rows = await self._database.fetch(*_GET(execution_ids=Texts(execution_ids)))
        return [queued_row(row) for row in rows]

    async def list_of(
        self, workspace: str, *, from_execution_id: str, is_ascending: bool, limit: int
    ) -> list[QueuedRow]:
        page = _page(is_ascending=is_ascending, is_first=not from_execution_id)
        start: dict[str, Any] = {"from_execution_id": from_execution_id} if from_execution_id else {}
        rows = await self._database.fetch(*page(workspace=workspace, limit=limit, **start))
        return [queued_row(row) for row in rows]

    async def place_of(self, execution_id: str, workspace: str) -> QueuePlace | None:
        rows = await self._database.fetch(_PLACE, (execution_id, workspace))
        return QueuePlace(State(rows[0][0]), *rows[0][1:]) if rows else None

    async def requests(self, workspace: str, request_ids: Sequence[str]) -> list[UsedRequest]:
        rows = await self._database.fetch(*_REQUESTS(workspace=workspace, request_ids=Texts(request_ids)))
        return [UsedRequest(*row) for row in rows]

    async def configure(self, workspace: str, limits: WorkspaceLimits, is_closed: bool) -> list[str]:
        """Store the limits. Returns the executions that became dead letters because the workspace was closed."""
        crash_point("dispatcher.configure.before_commit")
        values = {"workspace": workspace, "closed": is_closed, **limits._asdict()}
        statements: list[Statement] = [_CONFIGURE(**values)]
        if is_closed:
            statements.append(_CLOSE(of_workspace=workspace))
        answers = await self._database.pipeline(statements)
        crash_point("dispatcher.configure.after_commit")
        return [row[0] for rows in answers for row in rows]


def queued_row(row: Sequence[Any]) -> QueuedRow:
    state, start, attempts, reason, message, time, resolution, reviewer, notes, *rest = row
    resolve_time, has_begun, *unread = rest
    return QueuedRow(
        State(state),
        start,
        attempts,
        reason or "",
        message or "",
        time,
        resolution or "",
        reviewer or "",
        notes or "",
        resolve_time,
        has_begun,
        (unread and unread[0]) or (),
    )
