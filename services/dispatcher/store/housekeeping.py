"""The statements of the periodic rounds: find waiting work, due times, lost grants and old rows.

They skip rows that another transaction has locked; the next round finds them again.
"""

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import func

from services.chassis.postgres.arrays import Texts
from services.chassis.postgres.compiled import Composed, seconds
from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point
from services.dispatcher.core.items import Measure, Requeued, State
from services.dispatcher.store.tables import (
    coordinator_sessions,
    execution_id_text,
    is_going,
    is_held,
    is_in,
    is_parked,
    is_pending,
    is_waiting,
    lease_arrays,
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
_ENDING: Final = Composed(sa.select(sa.exists().where(is_pending, queue.c.ends_only)))


def _due(time: Any, *conditions: Any) -> Any:
    """Rows whose time has come, the earliest first. now() is a stable function, so that the index is used."""
    return (
        sa.select(queue.c.execution_id)
        .where(*conditions, time.is_not(None), time <= func.now())
        .order_by(time)
        .limit(1_000)
        .with_for_update(skip_locked=True)
        .cte("due")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )


def _changed(due: Any, **values: Any) -> Composed:
    return Composed(
        sa.update(queue)
        .where(queue.c.execution_id == due.c.execution_id)
        .values(values)
        .returning(execution_id_text, queue.c.workspace, queue.c.ends_only)
    )


_WAKE: Final = _changed(_due(queue.c.wake_time, is_parked), state=int(State.PENDING), wake_time=None)
_EXPIRE: Final = _changed(_due(queue.c.deadline_time, is_waiting), ends_only=True)


def _earliest(time: Any, *conditions: Any) -> Any:
    return sa.select(func.min(time)).where(*conditions, time.is_not(None)).scalar_subquery()


_NEXT_TIME: Final = func.least(_earliest(queue.c.wake_time, is_parked), _earliest(queue.c.deadline_time, is_waiting))
_NEXT: Final = Composed(sa.select(sa.cast(sa.extract("epoch", _NEXT_TIME - func.clock_timestamp()), sa.Double)))

_MARK: Final = """
WITH taken AS MATERIALIZED (
  SELECT q.execution_id FROM dispatcher.queue q
  JOIN unnest(%s::text[]::uuid[], %s) AS t (execution_id, epoch) USING (execution_id)
  WHERE q.epoch = t.epoch AND q.state + 0 = 2 ORDER BY q.execution_id FOR UPDATE OF q SKIP LOCKED
)
UPDATE dispatcher.queue q SET state = 3 FROM taken WHERE q.execution_id = taken.execution_id
"""

# Grants that were committed but never acknowledged: the dispatcher may have died before it sent them.
_LOST_GRANTS: Final = Composed(
    sa.select(queue.c.holder, execution_id_text, queue.c.epoch)
    .where(is_in(State.CLAIMED), queue.c.granted_time < func.now() - seconds(sa.bindparam("older_than")))
    .limit(5_000)
)


def _age(since: Any, condition: Any) -> Any:
    """The age of the oldest of these rows in seconds."""
    return sa.cast(func.coalesce(sa.extract("epoch", func.now() - func.min(since).filter(condition)), 0), sa.Double)


_MEASURE: Final = Composed(
    sa.select(
        queue.c.workspace,
        func.count().filter(is_waiting),
        func.count().filter(is_going),
        _age(queue.c.enqueue_time, is_waiting),
        _age(queue.c.granted_time, is_going),
    )
    .where(sa.or_(is_waiting, is_going))
    .group_by(queue.c.workspace)
)

# Deleted in pieces, so that no statement locks many rows at once.
_OLD: Final = (
    sa.select(requests.c.workspace, requests.c.request_id)
    .where(requests.c.create_time < func.now() - seconds(sa.bindparam("older_than")))
    .limit(5_000)
    .cte("old")
)
_FORGET_REQUESTS: Final = Composed(
    sa.delete(requests).where(requests.c.workspace == _OLD.c.workspace, requests.c.request_id == _OLD.c.request_id)
)


_IS_LIVE: Final = sa.exists().where(
    coordinator_sessions.c.instance_id == queue.c.holder, coordinator_sessions.c.state == "LIVE"
)
_UNHELD: Final = Composed(sa.select(queue.c.holder).where(is_held, ~_IS_LIVE).distinct())

_NOTIFY: Final = "SELECT count(pg_notify(%s, payload)) FROM unnest(%s) AS p (payload)"


class PostgresHousekeeping:
    def __init__(self, database: Database, *, lost_grant_seconds: float, request_key_seconds: float) -> None:
        self._database = database
        self._lost_grant_seconds = lost_grant_seconds
        self._request_key_seconds = request_key_seconds

    async def workspaces_with_work(self) -> tuple[list[str], bool]:
        """Workspaces in which something waits for a slot, and whether anything waits to be ended."""
        workspaces, ending = await self._database.pipeline([(_WORKSPACES, ()), _ENDING()])
        return [row[0] for row in workspaces], bool(ending[0][0])

    async def wake(self) -> tuple[list[Requeued], float | None]:
        """Wake the executions that are due. Also returns the seconds until the next one is due."""
        crash_point("dispatcher.wake.before_commit")
        woken, expired, following = await self._database.pipeline([_WAKE(), _EXPIRE(), _NEXT()])
        crash_point("dispatcher.wake.after_commit")
        return [Requeued(*row) for row in (*woken, *expired)], following[0][0]

    async def mark_dispatched(self, leases: Sequence[tuple[str, int]]) -> None:
        crash_point("dispatcher.mark.before_commit")
        await self._database.execute(_MARK, lease_arrays(leases))
        crash_point("dispatcher.mark.after_commit")

    async def lost_grants(self) -> dict[str, list[tuple[str, int]]]:
        by_holder: dict[str, list[tuple[str, int]]] = {}
        for holder, *lease in await self._database.fetch(*_LOST_GRANTS(older_than=self._lost_grant_seconds)):
            by_holder.setdefault(holder, []).append((lease[0], lease[1]))
        return by_holder

    async def holders_gone(self) -> list[str]:
        """Instances that hold executions and are not live."""
        return [row[0] for row in await self._database.fetch(*_UNHELD())]

    async def measure(self) -> list[Measure]:
        return [Measure(*row) for row in await self._database.fetch(*_MEASURE())]

    async def forget_requests(self) -> int:
        """Delete some that are older; returns how many."""
        return await self._database.execute(*_FORGET_REQUESTS(older_than=self._request_key_seconds))

    async def notify(self, channel: str, payloads: Sequence[str]) -> None:
        await self._database.fetch(_NOTIFY, (channel, Texts(payloads)))
