"""The statements of the periodic rounds: find waiting work, due times, lost grants and old rows.

They skip rows that another transaction has locked; the next round finds them again.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    DateTime,
    Double,
    bindparam,
    cast,
    delete,
    exists,
    extract,
    func,
    literal_column,
    null,
    select,
    union_all,
    update,
)

from services.chassis.postgres.arrays import BigInts, Texts
from services.chassis.postgres.compiled import Composed, seconds
from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point
from services.dispatcher.core.items import Astray, Measure, State, Woken
from services.dispatcher.store.tables import (
    execution_id_text,
    is_going,
    is_in,
    is_parked,
    is_pending,
    is_waiting,
    queue,
    requests,
)

# A loose index scan: one step for each workspace, however many executions wait in it.
_WORKSPACES: Final = """
WITH RECURSIVE workspace AS (
  (SELECT workspace FROM dispatcher.queue WHERE state = 1 AND NOT ends_only ORDER BY workspace LIMIT 1)
  UNION ALL
  SELECT (
    SELECT q.workspace FROM dispatcher.queue q
    WHERE q.state = 1 AND NOT q.ends_only AND q.workspace > workspace.workspace ORDER BY q.workspace LIMIT 1
  ) FROM workspace WHERE workspace.workspace IS NOT NULL
)
SELECT workspace FROM workspace WHERE workspace IS NOT NULL
"""
_ENDING: Final = Composed(select(exists().where(is_pending, queue.c.ends_only)))


def _due(time: Any, *conditions: Any) -> Any:
    """Rows whose time has come, the earliest first. now() is a stable function, so that the index is used."""
    return (
        select(queue.c.execution_id)
        .where(*conditions, time.is_not(None), time <= func.now())
        .order_by(time)
        .limit(1_000)
        .with_for_update(skip_locked=True)
        .cte("due")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )


def _changed(due: Any, **values: Any) -> Composed:
    return Composed(
        update(queue)
        .where(queue.c.execution_id == due.c.execution_id)
        .values(values)
        .returning(queue.c.workspace, queue.c.ends_only)
    )


_WAKE: Final = _changed(_due(queue.c.wake_time, is_parked), state=int(State.PENDING), wake_time=None)
_EXPIRE: Final = _changed(_due(queue.c.deadline_time, is_waiting), ends_only=True)


def _earliest(time: Any, *conditions: Any) -> Any:
    return select(func.min(time)).where(*conditions, time.is_not(None)).scalar_subquery()


_NEXT_TIME: Final = func.least(_earliest(queue.c.wake_time, is_parked), _earliest(queue.c.deadline_time, is_waiting))
_NEXT: Final = Composed(select(cast(extract("epoch", _NEXT_TIME - func.clock_timestamp()), Double)))

_MARK: Final = """
WITH taken AS MATERIALIZED (
  SELECT q.execution_id FROM dispatcher.queue q
  JOIN unnest(%s::text[]::uuid[], %s) AS t (execution_id, epoch) USING (execution_id)
  WHERE q.epoch = t.epoch AND q.state + 0 = 2 ORDER BY q.execution_id FOR UPDATE OF q SKIP LOCKED
)
UPDATE dispatcher.queue q SET state = 3 FROM taken WHERE q.execution_id = taken.execution_id
"""

# Grants that were committed but never acknowledged: the dispatcher may have died before it sent them.
_ASTRAY: Final = Composed(
    select(execution_id_text, queue.c.epoch, queue.c.holder)
    .where(is_in(State.CLAIMED), queue.c.granted_time < func.now() - seconds(bindparam("older_than")))
    .limit(5_000)
)


def _counted(counted: Any, **columns: Any) -> Any:
    labelled = [column.label(name) for name, column in columns.items()]
    return select(queue.c.workspace.label("workspace"), *labelled).where(counted).group_by(queue.c.workspace)


_NOBODY: Final[Any] = literal_column("0")
_NEVER: Final = cast(null(), DateTime(timezone=True))
_EACH: Final = union_all(
    _counted(is_waiting, waiting=func.count(), going=_NOBODY, since=func.min(queue.c.enqueue_time), lease_since=_NEVER),
    _counted(is_going, waiting=_NOBODY, going=func.count(), since=_NEVER, lease_since=func.min(queue.c.granted_time)),
).subquery()


def _age(since: Any) -> Any:
    return cast(func.coalesce(extract("epoch", func.now() - func.min(since)), 0), Double)


_MEASURE: Final = Composed(
    select(
        _EACH.c.workspace,
        cast(func.sum(_EACH.c.waiting), BigInteger),
        cast(func.sum(_EACH.c.going), BigInteger),
        _age(_EACH.c.since),
        _age(_EACH.c.lease_since),
    ).group_by(_EACH.c.workspace)
)

# Deleted in pieces, so that no statement locks many rows at once.
_OLD: Final = (
    select(requests.c.workspace, requests.c.request_id)
    .where(requests.c.create_time < func.now() - seconds(bindparam("older_than")))
    .limit(5_000)
    .cte("old")
)
_FORGET_REQUESTS: Final = Composed(
    delete(requests).where(requests.c.workspace == _OLD.c.workspace, requests.c.request_id == _OLD.c.request_id)
)


class PostgresHousekeeping:
    def __init__(self, database: Database, *, astray_seconds: float) -> None:
        self._database = database
        self._astray_seconds = astray_seconds

    async def workspaces_with_work(self) -> tuple[list[str], bool]:
        """Workspaces in which something waits for a slot, and whether anything waits to be ended."""
        workspaces, ending = await self._database.pipeline([(_WORKSPACES, ()), _ENDING()])
        return [row[0] for row in workspaces], bool(ending[0][0])

    async def wake(self) -> tuple[list[Woken], float | None]:
        """Wake the executions that are due. Also returns the seconds until the next one is due."""
        crash_point("dispatcher.wake.before_commit")
        woken, expired, following = await self._database.pipeline([_WAKE(), _EXPIRE(), _NEXT()])
        crash_point("dispatcher.wake.after_commit")
        return [Woken(*row) for row in (*woken, *expired)], following[0][0]

    async def mark_dispatched(self, leases: Sequence[tuple[str, int]]) -> None:
        crash_point("dispatcher.mark.before_commit")
        await self._database.execute(
            _MARK, (Texts([each[0] for each in leases]), BigInts([each[1] for each in leases]))
        )
        crash_point("dispatcher.mark.after_commit")

    async def astray(self) -> list[Astray]:
        rows: list[tuple[Any, ...]] = await self._database.fetch(*_ASTRAY(older_than=self._astray_seconds))
        return [Astray(*row) for row in rows]

    async def measure(self) -> list[Measure]:
        return [Measure(*row) for row in await self._database.fetch(*_MEASURE())]

    async def forget_requests(self, kept_seconds: float) -> int:
        """Delete some that are older; returns how many."""
        return await self._database.execute(*_FORGET_REQUESTS(older_than=kept_seconds))
