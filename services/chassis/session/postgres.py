"""Stores the sessions of one hop in PostgreSQL. The table belongs to the service (`store/tables.py`).

All times are the database's. Renewals are HOT updates, because they touch no indexed column and pages are half filled.
The statements are plain SQL, because beats are on the hot path and the others must be read together with them.

Hazard: several replicas renew the same rows. Each replica locks rows in the order of their ids, and the sweep skips
locked rows (they are being renewed), so that there is no deadlock.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import orjson

from services.chassis.lease.frames import Attach
from services.chassis.lease.timing import LeaseTiming
from services.chassis.postgres.connection import PgConnection
from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point
from services.chassis.session.store import EndedInstance

# How long an ENDED row is kept for people to look at. After that the instance is unknown, and an unknown instance is
# refused too.
_KEPT = "1 day"


class PostgresSessionStore:
    def __init__(self, database: Database | PgConnection, table: str, timing: LeaseTiming) -> None:
        """`table` is our own identifier with its schema: "dispatcher.coordinator_sessions"."""
        self._database = database
        # Time limit of a statement: an answer older than a beat is useless.
        self._seconds = max(1.0, timing.beat)
        self._second_look = timing.second_look
        self._term = timing.term
        self._open = _OPEN.format(table=table)
        self._renew = _RENEW.format(table=table)
        self._unheard = _UNHEARD_SINCE.format(table=table)
        self._end = _END.format(table=table)
        self._sweep = _SWEEP.format(table=table)
        self._ended_among = _ENDED_AMONG.format(table=table)

    async def open(self, attach: Attach, caller: str) -> bool:
        labels = {"labels": dict(attach.labels), "modules": list(attach.modules), "capacity": attach.capacity}
        crash_point("session.open.before_commit")
        labels_json = orjson.dumps(labels).decode()
        rows = await self._fetch(
            self._open, (attach.instance_id, caller, attach.holder, attach.version, labels_json, self._term)
        )
        crash_point("session.open.after_commit")
        return bool(rows)

    async def renew(self, instance_ids: Iterable[str]) -> set[str]:
        asked = list(instance_ids)
        crash_point("session.renew.before_commit")
        rows = await self._fetch(self._renew, (asked, self._term))
        crash_point("session.renew.after_commit")
        return set(asked).difference(row[0] for row in rows)

    async def now(self) -> datetime:
        rows = await self._fetch("SELECT clock_timestamp()", ())
        time: datetime = rows[0][0]
        return time

    async def is_unheard(self, instance_id: str, since: datetime) -> bool:
        return bool(await self._fetch(self._unheard, (instance_id, since)))

    async def end_if_unheard(self, instance_id: str, since: datetime) -> EndedInstance | None:
        crash_point("session.end.before_commit")
        rows = await self._fetch(self._end, (instance_id, since, instance_id))
        crash_point("session.end.after_commit")
        return EndedInstance(instance_id, *rows[0]) if rows else None

    async def sweep(self) -> list[EndedInstance]:
        crash_point("session.sweep.before_commit")
        rows = await self._fetch(self._sweep, (self._second_look,))
        crash_point("session.sweep.after_commit")
        return [EndedInstance(*row) for row in rows]

    async def ended_among(self, instance_ids: Iterable[str]) -> list[EndedInstance]:
        rows = await self._fetch(self._ended_among, (list(instance_ids),))
        return [EndedInstance(*row) for row in rows]

    async def _fetch(self, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        return await self._database.fetch(sql, params, seconds=self._seconds)


_SECONDS = "%s::float8 * interval '1 second'"

_OPEN = f"""
INSERT INTO {{table}} AS t
  (instance_id, opened_by, holder, version, labels, state, lease_until, heard_time, open_time)
SELECT i.instance_id, i.opened_by, i.holder, i.version, i.labels, 'LIVE', clock_timestamp() + i.term,
       clock_timestamp(), clock_timestamp()
FROM (SELECT %s::text AS instance_id, %s::text AS opened_by, %s::text AS holder, %s::text AS version,
             %s::text::jsonb AS labels, {_SECONDS} AS term) i
ON CONFLICT (instance_id) DO UPDATE
SET lease_until = excluded.lease_until, heard_time = excluded.heard_time, suspect_time = NULL,
    labels = excluded.labels
WHERE t.state = 'LIVE' AND t.opened_by = excluded.opened_by
RETURNING t.instance_id
"""

# The subquery locks in a fixed order. After waiting for a row, it checks the row's state again.
_RENEW = f"""
WITH locked AS MATERIALIZED (
  SELECT instance_id FROM {{table}} WHERE instance_id = ANY(%s::text[]) AND state = 'LIVE'
  ORDER BY instance_id FOR UPDATE
)
UPDATE {{table}} t
SET lease_until = clock_timestamp() + {_SECONDS}, heard_time = clock_timestamp(), suspect_time = NULL
FROM locked WHERE t.instance_id = locked.instance_id
RETURNING t.instance_id
"""

_UNHEARD = "extract(epoch FROM clock_timestamp() - heard_time)::float8"

_UNHEARD_SINCE = """
SELECT 1 FROM {table} WHERE instance_id = %s AND state = 'LIVE' AND heard_time <= %s::timestamptz
"""

_END = f"""
WITH ended AS (
  UPDATE {{table}} SET state = 'ENDED', ended_time = clock_timestamp()
  WHERE instance_id = %s AND state = 'LIVE' AND heard_time <= %s::timestamptz
  RETURNING holder, heard_time
)
SELECT holder, {_UNHEARD} FROM ended
UNION ALL
SELECT holder, {_UNHEARD} FROM {{table}} WHERE instance_id = %s AND state = 'ENDED'
"""

_SWEEP = f"""
WITH overdue AS MATERIALIZED (
  SELECT instance_id, suspect_time FROM {{table}}
  WHERE state = 'LIVE' AND lease_until < now() ORDER BY instance_id FOR UPDATE SKIP LOCKED
), suspected AS (
  UPDATE {{table}} t SET suspect_time = now()
  FROM overdue WHERE t.instance_id = overdue.instance_id AND overdue.suspect_time IS NULL
), forgotten AS (
  DELETE FROM {{table}} WHERE state = 'ENDED' AND ended_time < now() - interval '{_KEPT}'
), ended AS (
  UPDATE {{table}} t SET state = 'ENDED', ended_time = clock_timestamp()
  FROM overdue
  WHERE t.instance_id = overdue.instance_id AND overdue.suspect_time <= now() - {_SECONDS}
  RETURNING t.instance_id, t.holder, t.heard_time
)
SELECT instance_id, holder, {_UNHEARD} FROM ended
"""

_ENDED_AMONG = f"""
SELECT asked.instance_id, coalesce(t.holder, ''), coalesce({_UNHEARD}, 'infinity'::float8)
FROM unnest(%s::text[]) AS asked (instance_id) LEFT JOIN {{table}} t USING (instance_id)
WHERE t.state IS DISTINCT FROM 'LIVE'
"""
