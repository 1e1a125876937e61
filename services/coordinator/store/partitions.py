"""The monthly partitions of journal, executions and runs."""

from __future__ import annotations

from typing import Final

import psycopg

from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point
from services.chassis.telemetry.logs import logger

log = logger(__name__)

# Raw SQL, because every coordinator runs it, and many never need SQLAlchemy (reads.py).
_MAKE: Final = "SELECT make_partitions(now() + make_interval(months => %s))"
_SECONDS: Final = 30.0


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
