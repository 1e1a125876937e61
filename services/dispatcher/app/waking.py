"""Wakes what is due: parked executions at their time, and those whose deadline passes while they wait.

Sleeps until the next that is known, and no longer than the poll. Due is what the database's clock calls due, and it
says how much is left; this process's clock only decides when to ask, and is compared with itself alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.batcher import Level
from services.chassis.process.clock import Clock
from services.chassis.telemetry.logs import logger
from services.dispatcher.app.returns import Wakes
from services.dispatcher.core.items import Woken

log = logger(__name__)
# Asked a little late rather than a little early, when it would have to be asked again.
_LATE_SECONDS: Final = 0.002


class DueWork(Protocol):
    async def wake(self) -> tuple[Sequence[Woken], float | None]: ...


class Waking:
    def __init__(
        self, *, housekeeping: DueWork, admission_loop: Wakes, clock: Clock, poll_seconds: float
    ) -> None:
        self._housekeeping = housekeeping
        self._admission_loop = admission_loop
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._next: datetime | None = None
        self._sooner = Level()

    def due(self, time: datetime) -> None:
        """Something will have to be woken then, by the clock of this process."""
        if self._next is None or time < self._next:
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
        self._next = None
        woken, following = await self._housekeeping.wake()
        for each in woken:
            if each.is_ends_only:
                self._admission_loop.ending_waits()
            else:
                self._admission_loop.work_in(each.workspace)
        if following is not None:
            self._know(self._clock.now() + timedelta(seconds=min(following, self._poll_seconds)))

    def _know(self, time: datetime) -> None:
        """`due` may have named an earlier one meanwhile."""
        if self._next is None or time < self._next:
            self._next = time

    @property
    def pause_seconds(self) -> float:
        """Until the next look."""
        if self._next is None:
            return self._poll_seconds
        left = (self._next - self._clock.now()).total_seconds() + _LATE_SECONDS
        return min(self._poll_seconds, max(_LATE_SECONDS, left))
