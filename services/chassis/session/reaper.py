"""Ends the instances that no replica hears any more, and reports the instances that any replica has ended.

Hazard: after an outage of the database every lease looks overdue, because no beat could be renewed. The same
holds after this process was stopped itself. So nothing is swept for one term after the last failed or slow
call, nor for one term after the start, because the process does not know what was before.
"""

from collections.abc import Callable, Iterable

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.lease.timing import LeaseTiming
from services.chassis.process.clock import Clock
from services.chassis.session.store import EndedInstance, SessionStore
from services.chassis.telemetry.logs import logger

log = logger(__name__)


class SweepGuard:
    """Tells whether the store has been reachable for long enough to judge holders by their silence."""

    def __init__(self, timing: LeaseTiming, now: float) -> None:
        self._term = timing.term
        # After a slower answer, renewals may have waited too. At least 1 s, because a busy machine is no outage.
        self._slow = max(1.0, timing.beat)
        self._regained_at = now

    def failed(self, now: float) -> None:
        self._regained_at = now

    def answered(self, asked_at: float, now: float) -> None:
        if now - asked_at > self._slow:
            self._regained_at = now

    def woke(self, due: float, now: float) -> None:
        """A timer that was due at `due` has run. If it is late, this process may have been stopped."""
        self.answered(due, now)

    def may_sweep(self, now: float) -> bool:
        return now - self._regained_at >= self._term


class SessionReaper:
    """`run_once` asks for the ends of the instances that matter to this replica, and sweeps."""

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
            # The store is asked even when nothing is watched, so that each run notices whether it is away.
            ended = await self._store.ended_among(sorted(set(self._watched())))
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
