"""Executions that could not be admitted, or that no coordinator could go on with: rows in state FAILED.

A person decides about each of them once. Every decision locks the row first, so it does not matter how many try at
once. A row that is queued again goes on as any other; how it had failed, and who has queued it again, is kept in a
table of its own (`requeues`).
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    LargeBinary,
    Text,
    bindparam,
    case,
    func,
    insert,
    literal_column,
    null,
    select,
    tuple_,
    union_all,
    update,
)

from services.chassis.postgres.columns import TIME
from services.chassis.postgres.compiled import Composed
from services.chassis.postgres.connection import Connection
from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point
from services.dispatcher.core.items import FailedPlace, QueuedRow, Requeueing, RequeueOrder, State
from services.dispatcher.store.reads import COLUMNS, queued_row
from services.dispatcher.store.tables import is_dead, queue, requeues

_NAMES: Final = [column.name for column in COLUMNS]
_ID: Final = queue.c.execution_id.type
_SEEN_TIME: Final = bindparam("seen_time", type_=TIME)
_IS_ASKED_FOR: Final = (queue.c.execution_id == bindparam("of_execution_id", type_=_ID)) & (
    queue.c.workspace == bindparam("of_workspace", type_=Text)
)
# The row that the caller has seen, unless it has not said which.
_IS_OPEN: Final = (
    is_dead & queue.c.resolution.is_(null()) & (queue.c.failure_time == func.coalesce(_SEEN_TIME, queue.c.failure_time))
)

# A row of `requeues` in the columns of a row of the queue.
_KEPT: Final[Mapping[str, ColumnElement[Any]]] = {
    "state": literal_column(str(int(State.FAILED))),
    "resolution": literal_column("'REQUEUED'"),
    "begun": literal_column("false"),
}
_REQUEUED_COLUMNS: Final = [(_KEPT[name] if name in _KEPT else requeues.c[name]).label(name) for name in _NAMES]
_IS_KEPT: Final = (requeues.c.execution_id == bindparam("of_execution_id", type_=_ID)) & (
    requeues.c.workspace == bindparam("of_workspace", type_=Text)
)

_LOCK: Final = Composed(select(literal_column("1")).where(_IS_ASKED_FOR).with_for_update())
_EARLIER: Final = Composed(
    select(*_REQUEUED_COLUMNS, requeues.c.request_hash).where(
        _IS_KEPT, requeues.c.request_id == bindparam("request_id", type_=Text)
    )
)
_COPIED: Final = ("execution_id", "failure_time", "workspace", "attempts", "failure_reason", "failure_message")
_KEEP: Final = Composed(
    insert(requeues)
    .from_select(
        [*_COPIED, "reviewer", "notes", "request_id", "request_hash", "start"],
        select(
            *(queue.c[name] for name in _COPIED),
            bindparam("new_reviewer", type_=Text),
            bindparam("new_notes", type_=Text),
            func.nullif(bindparam("new_request_id", type_=Text), ""),
            bindparam("new_request_hash", type_=LargeBinary),
            bindparam("shown_start", type_=LargeBinary),
        ).where(_IS_ASKED_FOR, _IS_OPEN),
        include_defaults=False,
    )
    .returning(*_REQUEUED_COLUMNS)
)
_REQUEUE: Final = Composed(
    update(queue)
    .where(_IS_ASKED_FOR)
    .values(
        state=int(State.PENDING),
        urgent=True,
        # Its deadline may have passed before it failed. From now on it goes on, so it needs a slot like any other.
        ends_only=False,
        attempts=0,
        # From now on it waits for a slot again, if it had one.
        wake_time=case((queue.c.begun, func.clock_timestamp())),
        failure_reason=None,
        failure_message=None,
        failure_time=None,
        shown_start=None,
        deadline_time=bindparam("new_deadline_time", type_=TIME),
        start=bindparam("new_start", type_=LargeBinary),
    )
)
_DISCARD: Final = Composed(
    update(queue)
    .where(_IS_ASKED_FOR, _IS_OPEN)
    .values(
        resolution="DISCARDED",
        resolve_time=func.clock_timestamp(),
        reviewer=bindparam("new_reviewer", type_=Text),
        notes=bindparam("new_notes", type_=Text),
    )
    .returning(*COLUMNS)
)


# Lists show no inputs, so they do not read them either.
_LISTED_COLUMNS: Final = [
    func.coalesce(queue.c.shown_start, queue.c.start).label("start") if column is queue.c.start else column
    for column in COLUMNS
]


def _failed(
    of_queue: Sequence[ColumnElement[bool]],
    of_requeues: Sequence[ColumnElement[bool]],
    columns: Sequence[ColumnElement[Any]] = COLUMNS,
) -> Any:
    """Rows in state FAILED, and those that were queued again, as one table."""
    return union_all(
        select(*columns, queue.c.execution_id).where(is_dead, *of_queue),
        select(*_REQUEUED_COLUMNS, requeues.c.execution_id).where(*of_requeues),
    ).subquery("failed")


def _newest() -> Composed:
    found = _failed([_IS_ASKED_FOR], [_IS_KEPT])
    return Composed(select(*(found.c[name] for name in _NAMES)).order_by(found.c.failure_time.desc()).limit(1))


_NEWEST: Final = _newest()


@functools.cache
def _page(*, is_ascending: bool, is_first: bool) -> Composed:
    conditions: list[list[ColumnElement[bool]]] = []
    for table in (queue, requeues):
        conditions.append([table.c.workspace == bindparam("workspace")])
        if not is_first:
            place = tuple_(table.c.failure_time, table.c.execution_id)
            after = tuple_(bindparam("after_time", type_=TIME), bindparam("after_id", type_=_ID))
            conditions[-1].append(place > after if is_ascending else place < after)
    found = _failed(conditions[0], conditions[1], _LISTED_COLUMNS)
    order = (found.c.failure_time, found.c.execution_id)
    in_order = order if is_ascending else [column.desc() for column in order]
    return Composed(select(*(found.c[name] for name in _NAMES)).order_by(*in_order).limit(bindparam("limit")))


async def _earlier(connection: Connection, of: dict[str, str], asked: RequeueOrder) -> Requeueing | None:
    """What an earlier call under the same request id has done."""
    if not asked.request_id:
        return None
    found = await (await connection.execute(*_EARLIER(**of, request_id=asked.request_id))).fetchone()
    if found is None:
        return None
    *row, request_hash = found
    return Requeueing(queued_row(row), is_first=False, is_reused=request_hash != asked.request_hash)


async def _requeued(connection: Connection, of: dict[str, str], asked: RequeueOrder) -> Requeueing | None:
    keep = _KEEP(
        **of,
        seen_time=asked.failure_time,
        new_reviewer=asked.reviewer,
        new_notes=asked.notes,
        new_request_id=asked.request_id,
        new_request_hash=asked.request_hash,
        shown_start=asked.shown_start,
    )
    kept = await (await connection.execute(*keep)).fetchone()
    if kept is None:
        return None
    await connection.execute(*_REQUEUE(**of, new_start=asked.start, new_deadline_time=asked.deadline_time))
    return Requeueing(queued_row(kept), is_first=True)


class PostgresFailedRows:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_of(
        self, workspace: str, after: FailedPlace | None, limit: int, *, is_ascending: bool
    ) -> list[QueuedRow]:
        """Without their inputs, but for some rows: a row that was not failed by its holder has it."""
        place: dict[str, Any] = {}
        if after is not None:
            place = {"after_time": after.failure_time, "after_id": after.execution_id}
        page = _page(is_ascending=is_ascending, is_first=after is None)
        rows = await self._database.fetch(*page(workspace=workspace, limit=limit, **place))
        return [queued_row(row) for row in rows]

    async def requeue(self, workspace: str, execution_id: str, asked: RequeueOrder) -> Requeueing | None:
        """None: somebody has decided about it, or it is not FAILED."""
        of = {"of_execution_id": execution_id, "of_workspace": workspace}

        async def work(connection: Connection) -> Requeueing | None:
            await connection.execute(*_LOCK(**of))
            made = await _earlier(connection, of, asked) or await _requeued(connection, of, asked)
            crash_point("dispatcher.requeue.before_commit")
            return made

        requeueing = await self._database.transaction(work)
        crash_point("dispatcher.requeue.after_commit")
        return requeueing

    async def discard(
        self, workspace: str, execution_id: str, failure_time: Any, reviewer: str, notes: str
    ) -> QueuedRow | None:
        """The row with the decision. None: as above."""
        crash_point("dispatcher.discard.before_commit")
        rows: Sequence[Any] = await self._database.fetch(
            *_DISCARD(
                of_execution_id=execution_id,
                of_workspace=workspace,
                seen_time=failure_time,
                new_reviewer=reviewer,
                new_notes=notes,
            )
        )
        crash_point("dispatcher.discard.after_commit")
        return queued_row(rows[0]) if rows else None

    async def find(self, workspace: str, execution_id: str) -> QueuedRow | None:
        """The row in state FAILED, or else how it had failed before it was queued again the last time."""
        rows = await self._database.fetch(*_NEWEST(of_execution_id=execution_id, of_workspace=workspace))
        return queued_row(rows[0]) if rows else None
