"""The monthly partitions of journal, snapshots, executions, runs and approvals.

Months whose executions have all ended long ago are dropped. An execution belongs to the month in which it was created,
so one that sleeps for a year keeps its month. An imported one belongs to the month of its import and is as old as that.
Rows without a partition of their month are deleted one by one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import psycopg

from services.chassis.postgres.connection import Connection
from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point
from services.chassis.telemetry.logs import logger

log = logger(__name__)

# Raw SQL, because every coordinator runs it, and many never need SQLAlchemy (reads.py).
_MAKE: Final = "SELECT make_partitions(now() + make_interval(months => %s))"
_SECONDS: Final = 30.0

# The months that have partitions, with the seconds since their end.
_MONTHS: Final = """
SELECT month, extract(epoch FROM now() - (make_timestamptz(left(month, 4)::int, right(month, 2)::int, 1, 0, 0, 0, 'UTC')
                                          + interval '1 month'))::float8
FROM (
  SELECT right(c.relname, 7) AS month FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
  WHERE i.inhparent = 'coordinator.executions'::regclass AND c.relname ~ '_[0-9]{4}_[0-9]{2}$'
) m ORDER BY month
"""
# All rows of a month are read, which may take long and locks nothing.
_LOOK: Final = """
SELECT count(*), count(*) FILTER (
  WHERE imported_execution_id = '' AND (end_time IS NULL OR end_time > now() - make_interval(secs => %s::float8))
) FROM coordinator.executions_{month}
"""
_LOOK_SECONDS: Final = 600.0
_DROP: Final = "SELECT drop_partitions(%s, %s)"
_DELETE_REST: Final = """
WITH old AS MATERIALIZED (
  SELECT execution_id FROM executions_default WHERE CASE
    WHEN imported_execution_id = '' THEN end_time < now() - make_interval(secs => %s::float8)
    ELSE execution_id < uuid_floor(now() - make_interval(secs => %s::float8)) END
  LIMIT 500
), events AS (
  DELETE FROM journal_default j USING old WHERE j.execution_id = old.execution_id
), shortcuts AS (
  DELETE FROM snapshots_default s USING old WHERE s.execution_id = old.execution_id
), attempts AS (
  DELETE FROM runs_default r USING old WHERE r.execution_id = old.execution_id
), asked AS (
  DELETE FROM approvals_default a USING old WHERE a.execution_id = old.execution_id
)
DELETE FROM executions_default e USING old WHERE e.execution_id = old.execution_id
"""
_OLDEST_REST: Final = "SELECT min(execution_id::text) FROM executions_default"


_DELETE_DEAD_LETTERS: Final = """
DELETE FROM dead_letters d USING (
  SELECT execution_id, number FROM dead_letters
  WHERE quarantine_time < now() - make_interval(secs => %s::float8) LIMIT 1000
) old
WHERE d.execution_id = old.execution_id AND d.number = old.number
"""


async def forget_dead_letters(database: Database, kept_seconds: float) -> int:
    """Delete some that are older; returns how many."""
    return await database.execute(_DELETE_DEAD_LETTERS, (kept_seconds,))


async def make_ahead(database: Database, months: int) -> int:
    made = 0
    for month in range(months + 1):
        crash_point("coordinator.partitions.before_commit")
        try:
            row = await database.fetch_one(_MAKE, (month,), seconds=_SECONDS)
        except psycopg.Error as failure:
            # The default partition has rows of that month already. They stay there and can still be read.
            log.error("a month's partition cannot be made", months_ahead=month, error=str(failure))
            continue
        crash_point("coordinator.partitions.after_commit")
        made += bool(row and row[0])
    return made


async def drop_old(database: Database, kept_seconds: float) -> list[str]:
    """Drop the months in which every execution ended so long ago; returns them."""
    dropped = []
    for month, age_seconds in await database.fetch(_MONTHS):
        if age_seconds < kept_seconds:
            break
        count, still_needed = await _look(database, month, kept_seconds)
        if still_needed:
            continue
        row = await database.fetch_one(_DROP, (month, count))
        if row and row[0]:
            dropped.append(month)
    while await database.execute(_DELETE_REST, (kept_seconds, kept_seconds)):
        pass
    return dropped


async def _look(database: Database, month: str, kept_seconds: float) -> tuple[int, int]:
    """The number of executions in a month, and of those that are still needed."""

    async def work(connection: Connection) -> tuple[int, int]:
        async with connection.transaction():
            await connection.execute("SET LOCAL statement_timeout = 0")
            cursor = await connection.execute(_LOOK.format(month=month), (kept_seconds,))
            ((count, still_needed),) = await cursor.fetchall()
            return count, still_needed

    return await database.run(work, seconds=_LOOK_SECONDS)


async def kept_since(database: Database) -> datetime | None:
    """No execution that was created before this time has rows; None: there are no months yet."""
    months = await database.fetch(_MONTHS)
    (rest,) = await database.fetch(_OLDEST_REST)
    times = [datetime.strptime(month, "%Y_%m").replace(tzinfo=UTC) for month, _ in months[:1]]
    if rest[0] is not None:
        times.append(datetime.fromtimestamp(int(rest[0].replace("-", "")[:12], 16) / 1_000, UTC))
    return min(times, default=None)
