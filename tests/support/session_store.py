"""A session store in memory. It passes the same contract suite as the store in PostgreSQL, and can be away."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.lease.frames import Attach
from services.chassis.lease.timing import LeaseTiming
from services.chassis.process.clock import Clock, SystemClock
from services.chassis.session.store import EndedInstance


@dataclass(slots=True)
class _Row:
    opened_by: str
    holder: str
    lease_until: datetime
    heard_time: datetime
    is_live: bool = True
    suspect_time: datetime | None = None


class MemorySessionStore:
    """A session store in memory. Its clock stands for the database's."""

    def __init__(self, timing: LeaseTiming, clock: Clock | None = None) -> None:
        self.is_away = False
        self.renewed: list[str] = []
        self.judged: list[EndedInstance | None] = []
        self.sweeps = 0
        self._clock = clock or SystemClock()
        self._term = timedelta(seconds=timing.term)
        self._second_look = timedelta(seconds=timing.second_look)
        self._rows: dict[str, _Row] = {}

    async def open(self, attach: Attach, caller: str) -> bool:
        now = await self.now()
        row = self._rows.setdefault(attach.instance_id, _Row(caller, attach.holder, now, now))
        return row.opened_by == caller and self._renew(row, now)

    async def renew(self, instance_ids: Iterable[str]) -> set[str]:
        now = await self.now()
        asked = list(instance_ids)
        self.renewed += asked
        return {each for each in asked if each not in self._rows or not self._renew(self._rows[each], now)}

    def _renew(self, row: _Row, now: datetime) -> bool:
        if row.is_live:
            row.heard_time, row.lease_until, row.suspect_time = now, now + self._term, None
        return row.is_live

    async def now(self) -> datetime:
        if self.is_away:
            raise DependencyUnavailable("the database", "stopped by the test")
        return self._clock.now()

    async def is_unheard(self, instance_id: str, since: datetime) -> bool:
        await self.now()
        row = self._rows.get(instance_id)
        return row is not None and row.is_live and row.heard_time <= since

    async def end_if_unheard(self, instance_id: str, since: datetime) -> EndedInstance | None:
        now = await self.now()
        row = self._rows.get(instance_id)
        if row is not None and row.is_live and row.heard_time <= since:
            row.is_live = False
        self.judged.append(None if row is None or row.is_live else _ended(instance_id, row, now))
        return self.judged[-1]

    async def end(self, instance_id: str) -> None:
        """End the instance as another replica would."""
        assert await self.end_if_unheard(instance_id, await self.now()) is not None

    async def sweep(self) -> list[EndedInstance]:
        now = await self.now()
        self.sweeps += 1
        ended = []
        for instance_id, row in self._rows.items():
            if not row.is_live or row.lease_until >= now:
                continue
            if row.suspect_time is None:
                row.suspect_time = now
            elif row.suspect_time <= now - self._second_look:
                row.is_live = False
                ended.append(_ended(instance_id, row, now))
        return ended

    async def ended_among(self, instance_ids: Iterable[str]) -> list[EndedInstance]:
        now = await self.now()
        ended = []
        for instance_id in instance_ids:
            row = self._rows.get(instance_id)
            if row is None:
                ended.append(EndedInstance(instance_id, "", float("inf")))
            elif not row.is_live:
                ended.append(_ended(instance_id, row, now))
        return ended


def _ended(instance_id: str, row: _Row, now: datetime) -> EndedInstance:
    return EndedInstance(instance_id, row.holder, (now - row.heard_time).total_seconds())
