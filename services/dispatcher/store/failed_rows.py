"""Executions that could not be admitted, or that no coordinator could go on with: rows in state FAILED.

A person decides about each of them once. The condition is tested in the statement that changes the row, so it does not
matter how many try at once.
"""

import functools
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import LargeBinary, Text, bindparam, func, null, select, tuple_, update

from services.chassis.postgres.columns import TIME
from services.chassis.postgres.compiled import Composed
from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point
from services.dispatcher.core.items import FailedPlace, QueuedRow, State
from services.dispatcher.store.reads import COLUMNS, queued_row
from services.dispatcher.store.tables import is_dead, queue

_IS_ASKED_FOR: Final = (queue.c.execution_id == bindparam("of_execution_id", type_=queue.c.execution_id.type)) & (
    queue.c.workspace == bindparam("of_workspace", type_=Text)
)
_IS_OPEN: Final = is_dead & queue.c.resolution.is_(null())
_FIND: Final = Composed(select(*COLUMNS).where(_IS_ASKED_FOR, is_dead))
_REQUEUE: Final = Composed(
    update(queue)
    .where(_IS_ASKED_FOR, _IS_OPEN)
    .values(
        state=int(State.PENDING),
        urgent=True,
        attempts=0,
        wake_time=None,
        failure_reason=None,
        failure_message=None,
        failure_time=None,
        deadline_time=bindparam("new_deadline_time", type_=TIME),
        start=bindparam("new_start", type_=LargeBinary),
    )
    .returning(*COLUMNS)
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


@functools.cache
def _page(*, is_ascending: bool, is_first: bool) -> Composed:
    order = (queue.c.failure_time, queue.c.execution_id)
    statement = select(*COLUMNS).where(queue.c.workspace == bindparam("workspace"), is_dead)
    if not is_first:
        after = tuple_(bindparam("after_time", type_=TIME), bindparam("after_id", type_=queue.c.execution_id.type))
        statement = statement.where(tuple_(*order) > after if is_ascending else tuple_(*order) < after)
    in_order = order if is_ascending else [column.desc() for column in order]
    return Composed(statement.order_by(*in_order).limit(bindparam("limit")))


class PostgresFailedRows:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_of(
        self, workspace: str, after: FailedPlace | None, limit: int, *, is_ascending: bool
    ) -> list[QueuedRow]:
        place: dict[str, Any] = {}
        if after is not None:
            place = {"after_time": after.failure_time, "after_id": after.execution_id}
        page = _page(is_ascending=is_ascending, is_first=after is None)
        rows = await self._database.fetch(*page(workspace=workspace, limit=limit, **place))
        return [queued_row(row) for row in rows]

    async def requeue(self, workspace: str, execution_id: str, start: bytes, deadline_time: Any) -> QueuedRow | None:
        """The row, PENDING again. None: somebody has decided about it, or it is not FAILED."""
        return await self._change(
            "requeue",
            _REQUEUE(
                of_execution_id=execution_id, of_workspace=workspace, new_start=start, new_deadline_time=deadline_time
            ),
        )

    async def discard(self, workspace: str, execution_id: str, reviewer: str, notes: str) -> QueuedRow | None:
        """The row with the decision. None: as above."""
        return await self._change(
            "discard",
            _DISCARD(of_execution_id=execution_id, of_workspace=workspace, new_reviewer=reviewer, new_notes=notes),
        )

    async def find(self, workspace: str, execution_id: str) -> QueuedRow | None:
        rows = await self._database.fetch(*_FIND(of_execution_id=execution_id, of_workspace=workspace))
        return queued_row(rows[0]) if rows else None

    async def _change(self, what: str, statement: tuple[Any, Any]) -> QueuedRow | None:
        crash_point(f"dispatcher.{what}.before_commit")
        rows: Sequence[Any] = await self._database.fetch(*statement)
        crash_point(f"dispatcher.{what}.after_commit")
        return queued_row(rows[0]) if rows else None
