"""What is looked for from time to time, behind every wake-up: work, due times, leases and grants that went astray.

Every statement leaves alone what another transaction has locked; the next round finds it again.
"""

from collections.abc import Sequence
from typing import Any, Final

from services.chassis.postgres.arrays import BigInts, Texts
from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point
from services.dispatcher.core.items import Astray, Measure, Woken

# A loose scan: one step in the index for each workspace, however many wait in it.
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
_ENDING: Final = "SELECT EXISTS (SELECT 1 FROM dispatcher.queue WHERE state = 1 AND ends_only)"

# now(): a stable function, so that the index is used.
_WAKE: Final = """
WITH due AS MATERIALIZED (
  SELECT execution_id FROM dispatcher.queue
  WHERE state = 4 AND wake_time IS NOT NULL AND wake_time <= now()
  ORDER BY wake_time LIMIT 1000 FOR UPDATE SKIP LOCKED
)
UPDATE dispatcher.queue q SET state = 1, wake_time = NULL FROM due WHERE q.execution_id = due.execution_id
RETURNING q.workspace, q.ends_only
"""
_EXPIRE: Final = """
WITH due AS MATERIALIZED (
  SELECT execution_id FROM dispatcher.queue
  WHERE state = 1 AND NOT ends_only AND deadline_time IS NOT NULL AND deadline_time <= now()
  ORDER BY deadline_time LIMIT 1000 FOR UPDATE SKIP LOCKED
)
UPDATE dispatcher.queue q SET ends_only = true FROM due WHERE q.execution_id = due.execution_id
RETURNING q.workspace, q.ends_only
"""
_NEXT: Final = """
SELECT extract(epoch FROM least(
  (SELECT min(wake_time) FROM dispatcher.queue WHERE state = 4 AND wake_time IS NOT NULL),
  (SELECT min(deadline_time) FROM dispatcher.queue WHERE state = 1 AND NOT ends_only AND deadline_time IS NOT NULL)
) - clock_timestamp())::float8
"""

_MARK: Final = """
WITH taken AS MATERIALIZED (
  SELECT q.execution_id FROM dispatcher.queue q
  JOIN unnest(%s::text[]::uuid[], %s) AS t (execution_id, epoch) USING (execution_id)
  WHERE q.epoch = t.epoch AND q.state + 0 = 2 ORDER BY q.execution_id FOR UPDATE OF q SKIP LOCKED
)
UPDATE dispatcher.queue q SET state = 3 FROM taken WHERE q.execution_id = taken.execution_id
"""

# Committed, but never acknowledged: whoever granted them may have died before it sent them.
_ASTRAY: Final = """
SELECT execution_id::text, epoch, holder FROM dispatcher.queue
WHERE state = 2 AND granted_time < now() - %s::float8 * interval '1 second'
LIMIT 5000
"""

_MEASURE: Final = """
SELECT workspace, sum(waiting)::int8, sum(going)::int8, max(age)::float8, max(lease_age)::float8 FROM (
  SELECT workspace, count(*) AS waiting, 0 AS going, extract(epoch FROM now() - min(enqueue_time)) AS age,
         0 AS lease_age
  FROM dispatcher.queue WHERE state = 1 AND NOT ends_only GROUP BY workspace
  UNION ALL
  SELECT workspace, 0, count(*), 0, extract(epoch FROM now() - min(granted_time))
  FROM dispatcher.queue WHERE state IN (2, 3) AND NOT ends_only GROUP BY workspace
) each GROUP BY workspace
"""

# In pieces, so that no deletion holds many rows at once.
_FORGET_REQUESTS: Final = """
WITH old AS (
  SELECT workspace, request_id FROM dispatcher.requests
  WHERE create_time < now() - %s::float8 * interval '1 second' LIMIT 5000
)
DELETE FROM dispatcher.requests r USING old
WHERE r.workspace = old.workspace AND r.request_id = old.request_id
"""


class PostgresHousekeeping:
    def __init__(self, database: Database, *, astray_seconds: float) -> None:
        self._database = database
        self._astray_seconds = astray_seconds

    async def workspaces_with_work(self) -> tuple[list[str], bool]:
        """Workspaces in which something waits for a slot, and whether anything waits to be ended."""
        workspaces, ending = await self._database.pipeline([(_WORKSPACES, ()), (_ENDING, ())])
        return [row[0] for row in workspaces], bool(ending[0][0])

    async def wake(self) -> tuple[list[Woken], float | None]:
        """Wake what is due; in how many seconds the next will be."""
        crash_point("dispatcher.wake.before_commit")
        woken, expired, following = await self._database.pipeline([(_WAKE, ()), (_EXPIRE, ()), (_NEXT, ())])
        crash_point("dispatcher.wake.after_commit")
        return [Woken(*row) for row in (*woken, *expired)], following[0][0]

    async def mark_dispatched(self, leases: Sequence[tuple[str, int]]) -> None:
        crash_point("dispatcher.mark.before_commit")
        await self._database.execute(
            _MARK, (Texts([each[0] for each in leases]), BigInts([each[1] for each in leases]))
        )
        crash_point("dispatcher.mark.after_commit")

    async def astray(self) -> list[Astray]:
        rows: list[tuple[Any, ...]] = await self._database.fetch(_ASTRAY, (self._astray_seconds,))
        return [Astray(*row) for row in rows]

    async def measure(self) -> list[Measure]:
        return [Measure(*row) for row in await self._database.fetch(_MEASURE)]

    async def forget_requests(self, kept_seconds: float) -> int:
        """Some of those that are older; how many."""
        return await self._database.execute(_FORGET_REQUESTS, (kept_seconds,))
