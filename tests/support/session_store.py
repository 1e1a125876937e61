"""A session store in memory, for tests. It passes the same contract suite as the store in PostgreSQL."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from services.chassis.lease.frames import Attach
from services.chassis.lease.timing import LeaseTiming
from services.chassis.process.clock import Clock
from services.chassis.session.store import EndedInstance


@dataclass(slots=True)
class _Row:
    holder: str
    lease_until: datetime
    heard_time: datetime
    is_live: bool = True
    suspect_time: datetime | None = None


class MemorySessionStore:
    """The clock stands for the database's."""

    def __init__(self, clock: Clock, timing: LeaseTiming) -> None:
        self._clock = clock
        self._term = timedelta(seconds=timing.term)
        self._second_look = timedelta(seconds=timing.second_look)
        self._rows: dict[str, _Row] = {}

    async def open(self, attach: Attach) -> bool:
        now = self._clock.now()
        row = self._rows.setdefault(attach.instance_id, _Row(attach.holder, now, now))
        return self._renew(row)

    async def renew(self, instance_ids: Iterable[str]) -> set[str]:
        refused = set()
        for instance_id in instance_ids:
            row = self._rows.get(instance_id)
            if row is None or not self._renew(row):
                refused.add(instance_id)
        return refused

    def _renew(self, row: _Row) -> bool:
        if row.is_live:
            row.heard_time = self._clock.now()
            row.lease_until = row.heard_time + self._term
            row.suspect_time = None
        return row.is_live

    async def now(self) -> datetime:
        return self._clock.now()

    async def end_if_unheard(self, instance_id: str, since: datetime) -> EndedInstance | None:
        row = self._rows.get(instance_id)
        if row is None:
            return None
        if row.is_live and row.heard_time <= since:
            row.is_live = False
        return None if row.is_live else self._ended(instance_id, row)

    async def sweep(self) -> list[EndedInstance]:
        now = self._clock.now()
        ended = []
        for instance_id, row in self._rows.items():
            if not row.is_live or row.lease_until >= now:
                continue
            if row.suspect_time is None:
                row.suspect_time = now
            elif row.suspect_time <= now - self._second_look:
                row.is_live = False
                ended.append(self._ended(instance_id, row))
        return ended

    async def ended_among(self, instance_ids: Iterable[str]) -> list[EndedInstance]:
        ended = []
        for instance_id in instance_ids:
            row = self._rows.get(instance_id)
            if row is None:
                ended.append(EndedInstance(instance_id, "", float("inf")))
            elif not row.is_live:
                ended.append(self._ended(instance_id, row))
        return ended

    def _ended(self, instance_id: str, row: _Row) -> EndedInstance:
        return EndedInstance(instance_id, row.holder, (self._clock.now() - row.heard_time).total_seconds())
