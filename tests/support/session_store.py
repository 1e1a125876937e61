"""A session store in memory. It passes the same contract suite as the store in PostgreSQL, and can be away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.lease.frames import Attach
from services.chassis.lease.timing import LeaseTiming
from services.chassis.process.clock import Clock, SystemClock
from services.chassis.session.store import EndedInstance
from tests.support.memory_queue import Statement, at_once

# An ended row is kept for so long.
KEPT = timedelta(days=1)


@dataclass(slots=True)
class SessionRow:
    opened_by: str
    holder: str
    lease_until: datetime
    heard_time: datetime
    is_live: bool = True
    suspect_time: datetime | None = None
    ended_time: datetime | None = None

    def end(self, now: datetime) -> None:
        self.is_live, self.ended_time = False, now

    def unheard_seconds(self, now: datetime) -> float:
        return (now - self.heard_time).total_seconds()


class MemorySessionStore:
    """Its clock stands for the database's. Replicas share `rows`."""

    def __init__(
        self,
        timing: LeaseTiming,
        clock: Clock | None = None,
        *,
        rows: dict[str, SessionRow] | None = None,
        run: Statement = at_once,
    ) -> None:
        self.is_away = False
        self.renewed: list[str] = []
        self.judged: list[EndedInstance | None] = []
        self.sweeps = 0
        self.rows: dict[str, SessionRow] = {} if rows is None else rows
        self._clock = clock or SystemClock()
        self._run = run
        self._term = timedelta(seconds=timing.term)
        self._second_look = timedelta(seconds=timing.second_look)

    def _now(self) -> datetime:
        if self.is_away:
            raise DependencyUnavailable("the database", "stopped by the test")
        return self._clock.now()

    async def open(self, attach: Attach, caller: str) -> bool:
        def work() -> bool:
            now = self._now()
            row = self.rows.setdefault(attach.instance_id, SessionRow(caller, attach.holder, now, now))
            return row.opened_by == caller and self._renew(row, now)

        return await self._run(work)

    async def renew(self, instance_ids: Iterable[str]) -> set[str]:
        asked = list(instance_ids)

        def work() -> set[str]:
            now = self._now()
            self.renewed += asked
            return {each for each in asked if each not in self.rows or not self._renew(self.rows[each], now)}

        return await self._run(work)

    def _renew(self, row: SessionRow, now: datetime) -> bool:
        if row.is_live:
            row.heard_time, row.lease_until, row.suspect_time = now, now + self._term, None
        return row.is_live

    async def now(self) -> datetime:
        return await self._run(self._now)

    async def is_unheard(self, instance_id: str, since: datetime) -> bool:
        def work() -> bool:
            self._now()
            row = self.rows.get(instance_id)
            return row is not None and row.is_live and row.heard_time <= since

        return await self._run(work)

    async def end_if_unheard(self, instance_id: str, since: datetime) -> EndedInstance | None:
        def work() -> EndedInstance | None:
            now = self._now()
            row = self.rows.get(instance_id)
            if row is not None and row.is_live and row.heard_time <= since:
                row.end(now)
            self.judged.append(None if row is None or row.is_live else _ended(instance_id, row, now))
            return self.judged[-1]

        return await self._run(work)

    async def end(self, instance_id: str) -> None:
        """End the instance as another replica would."""
        assert await self.end_if_unheard(instance_id, await self.now()) is not None

    async def sweep(self) -> list[EndedInstance]:
        return await self._run(self._sweep)

    def _sweep(self) -> list[EndedInstance]:
        now = self._now()
        self.sweeps += 1
        ended = []
        for instance_id in [each for each, row in self.rows.items() if row.ended_time and row.ended_time < now - KEPT]:
            del self.rows[instance_id]
        for instance_id, row in self.rows.items():
            if not row.is_live or row.lease_until >= now:
                continue
            if row.suspect_time is None:
                row.suspect_time = now
            elif row.suspect_time <= now - self._second_look:
                row.end(now)
                ended.append(_ended(instance_id, row, now))
        return ended

    async def ended_among(self, instance_ids: Iterable[str]) -> list[EndedInstance]:
        asked = list(instance_ids)

        def work() -> list[EndedInstance]:
            now = self._now()
            found = [(each, self.rows.get(each)) for each in asked]
            return [
                EndedInstance(each, "", float("inf")) if row is None else _ended(each, row, now)
                for each, row in found
                if row is None or not row.is_live
            ]

        return await self._run(work)


def live_instances(rows: Mapping[str, SessionRow], now: datetime, granted_again: float) -> dict[str, float]:
    """Seconds since each instance was heard, if fewer than `granted_again`; 0 for those that are LIVE."""
    unheard = {each: 0.0 if row.is_live else row.unheard_seconds(now) for each, row in rows.items()}
    return {each: seconds for each, seconds in unheard.items() if seconds < granted_again}


def _ended(instance_id: str, row: SessionRow, now: datetime) -> EndedInstance:
    return EndedInstance(instance_id, row.holder, row.unheard_seconds(now))
