"""Ends the instances that nobody hears any more, and tells of those that anybody ended.

Hazard: a process that could not reach its database, or was stopped itself, has no opinion. After an outage
every lease looks overdue, because nobody could renew; so for one term after the last failed, or slow, or
first call nothing is swept. The process's start counts as the end of an outage: it cannot know what was
before.
"""

from collections.abc import Callable, Iterable

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.lease.timing import LeaseTiming
from services.chassis.process.clock import Clock
from services.chassis.session.store import EndedInstance, SessionStore
from services.chassis.telemetry.logs import logger

log = logger(__name__)


class SweepGuard:
    """Whether the store has been reachable for long enough to judge others by their silence."""

    def __init__(self, timing: LeaseTiming, now: float) -> None:
        self._term = timing.term
        # Slower than this, the renewals of others may have waited too. Not scaled: a busy machine is no outage.
        self._slow = max(1.0, timing.beat)
        self._regained_at = now

    def failed(self, now: float) -> None:
        self._regained_at = now

    def answered(self, asked_at: float, now: float) -> None:
        if now - asked_at > self._slow:
            self._regained_at = now

    def woke(self, due: float, now: float) -> None:
        """A process that was stopped itself heard nobody either."""
        self.answered(due, now)

    def may_sweep(self, now: float) -> bool:
        return now - self._regained_at >= self._term


class SessionReaper:
    """`run_once` is one look: sweep, then ask after the instances that matter to this replica."""

    def __init__(
        self,
        store: SessionStore,
        guard: SweepGuard,
        clock: Clock,
        watched: Callable[[], Iterable[str]],
        on_ended: Callable[[list[EndedInstance]], None],
    ) -> None:
        self._store = store
        self._guard = guard
        self._clock = clock
        self._watched = watched
        self._on_ended = on_ended

    async def run_once(self) -> None:
        asked_at = self._clock.monotonic()
        try:
            # Asked even when nothing is watched: each look must notice whether the store is away.
            ended = await self._store.ended_among(set(self._watched()))
            if self._guard.may_sweep(asked_at):
                ended += await self._store.sweep()
        except DependencyUnavailable as away:
            self._guard.failed(self._clock.monotonic())
            log.warning("sessions are not swept while the database is away", error=str(away))
            return
        self._guard.answered(asked_at, self._clock.monotonic())
        if ended:
            unique = {each.instance_id: each for each in ended}
            self._on_ended(list(unique.values()))
