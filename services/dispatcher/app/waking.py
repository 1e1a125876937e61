"""Wakes executions that are due: parked ones at their wake time, queued ones at their deadline.

It sleeps until the next known time, and no longer than the poll. The database's clock decides what is due and how much
time is left. This process's clock only decides when to ask, and is never compared with the database's.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.batcher import Level
from services.chassis.process.clock import Clock
from services.chassis.telemetry.logs import logger
from services.dispatcher.app.admission_inbox import AdmissionInbox
from services.dispatcher.app.ports import Housekeeping

log = logger(__name__)
# It asks a little late, because one that asks too early has to ask again.
_LATE_SECONDS: Final = 0.002
_NEVER: Final = datetime.max.replace(tzinfo=UTC)


class Waking:
    def __init__(self, *, housekeeping: Housekeeping, inbox: AdmissionInbox, clock: Clock, poll_seconds: float) -> None:
        self._housekeeping = housekeeping
        self._inbox = inbox
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._next = _NEVER
        self._sooner = Level()

    def wake_at(self, time: datetime) -> None:
        """An execution has to be woken at this time, by the clock of this process."""
        if time < self._next:
            self._next = time
            self._sooner.set()

    async def run(self) -> None:
        while True:
            try:
                await self.run_once()
            except DependencyUnavailable as failure:
                log.info("waking waits for the database", error=str(failure))
            await self._sooner.wait(self.pause_seconds)

    async def run_once(self) -> None:
        self._next = _NEVER
        woken, following = await self._housekeeping.wake()
        self._inbox.requeued(woken)
        if following is not None:
            time = self._clock.now() + timedelta(seconds=min(following, self._poll_seconds))
            # `wake_at` may have set an earlier time during the statement.
            self._next = min(self._next, time)

    @property
    def pause_seconds(self) -> float:
        """The time until the next look."""
        left = (self._next - self._clock.now()).total_seconds() + _LATE_SECONDS
        return min(self._poll_seconds, max(_LATE_SECONDS, left))
