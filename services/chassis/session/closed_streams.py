"""Follows up the end of a stream: judges the holder's instance after a grace period, and settles its grants.

Grants that were not sent go back to the hop at once. The instance ends after the grace period, unless it has attached
again here or any replica has heard it since the close. Work that may be done twice waits for a shorter time, after
which the hop may grant it elsewhere (`SessionOwner.on_unheard`). If the store is away then, the sweep judges the
instance (reaper.py). The hop hears of the end in `SessionOwner.on_ended`.

A grant that was sent on the stream and not counted is in doubt until the instance attaches again or ends. Nothing else
can settle it, because the holder may be at work while its other streams are open.
"""

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.lease.frames import Grant, Refused
from services.chassis.lease.timing import LeaseTiming
from services.chassis.process.clock import Clock
from services.chassis.session.owners import SessionOwner
from services.chassis.session.reaper import SweepGuard
from services.chassis.session.server import ServerSession
from services.chassis.session.store import EndedInstance, SessionStore
from services.chassis.telemetry.logs import logger

log = logger(__name__)


@dataclass(slots=True)
class _Doubt:
    """Grants sent on a stream that is gone."""

    session: ServerSession
    grants: list[Grant]
    # The time at which the owner is told that the instance has not come back. None: it has been told.
    due: float | None


class ClosedStreams:
    def __init__(
        self,
        *,
        store: SessionStore,
        timing: LeaseTiming,
        guard: SweepGuard,
        owner: SessionOwner,
        clock: Clock,
        attached: dict[str, ServerSession],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`attached` has the present session of each instance. The registry adds the sessions to it."""
        self._store = store
        self._timing = timing
        self._guard = guard
        self._owner = owner
        self._clock = clock
        self._attached = attached
        self._spawn = spawn
        self._doubts: dict[str, list[_Doubt]] = {}

    def closed(self, session: ServerSession, *, is_stopping: bool) -> None:
        """The stream of this session is over. A server that stops judges no instance."""
        closed_at = self._clock.monotonic()
        withdrawn, in_doubt = session.lost()
        if withdrawn:
            self._owner.on_withdrawn(session, withdrawn)
        if in_doubt:
            self._put_in_doubt(session, in_doubt)
        if not session.was_attached:
            return
        self._owner.on_closed(session)
        if self._attached.get(session.instance_id) is session:
            del self._attached[session.instance_id]
            if not is_stopping:
                self._spawn(self._judge_unheard(session.instance_id, closed_at))

    async def _judge_unheard(self, instance_id: str, closed_at: float) -> None:
        """End the instance after the grace, unless it has attached again or another replica has heard it."""
        timing = self._timing
        try:
            asked_time = await self._store.now()
            # The stream closed this long before the answer. A beat between the two counts, so `since` is set back.
            since = asked_time - timedelta(seconds=self._clock.monotonic() - closed_at)
            if timing.idempotent_grace < timing.closed_grace:
                if await self._is_back(instance_id, closed_at + timing.idempotent_grace):
                    return
                if await self._store.is_unheard(instance_id, since=since):
                    self._owner.on_unheard(instance_id)
            if await self._is_back(instance_id, closed_at + timing.closed_grace):
                return
            ended = await self._store.end_if_unheard(instance_id, since=since)
        except DependencyUnavailable as away:
            self._guard.failed(self._clock.monotonic())
            log.warning("the sweep will judge a closed instance", instance_id=instance_id, error=str(away))
            return
        if ended is not None:
            self.ended([ended])

    async def _is_back(self, instance_id: str, due: float) -> bool:
        """Waits until then. True if the instance has attached here again."""
        await self._clock.sleep(max(0.0, due - self._clock.monotonic()))
        return instance_id in self._attached

    def ended(self, ended: list[EndedInstance]) -> None:
        """These instances have ended, here or by the judgement of another replica."""
        for each in ended:
            self._doubts.pop(each.instance_id, None)
            session = self._attached.get(each.instance_id)
            if session is not None:
                session.ended()
        self._owner.on_ended(ended)

    def _put_in_doubt(self, session: ServerSession, grants: list[Grant]) -> None:
        due = self._clock.monotonic() + self._timing.grant_answer
        self._doubts.setdefault(session.instance_id, []).append(_Doubt(session, grants, due))
        newer = self._attached.get(session.instance_id)
        if newer is not None and newer is not session:
            self.attached(newer)

    def attached(self, session: ServerSession) -> None:
        """Settle the doubts. The attach has named all leases of the holder, which no longer reads its lost stream. So
        each grant that was sent there is either held or will never be started.
        """
        for doubt in self._doubts.pop(session.instance_id, ()):
            held = [grant for grant in doubt.grants if session.holds(grant.lease_id, grant.epoch)]
            denied = [
                Refused(grant.lease_id, grant.epoch, "NOT_HELD")
                for grant in doubt.grants
                if not session.holds(grant.lease_id, grant.epoch)
            ]
            if held:
                self._owner.on_taken(session, held)
            if denied:
                self._owner.on_refused(session, denied)

    def in_doubt(self) -> Iterable[str]:
        """The instances of which a grant is in doubt."""
        return self._doubts.keys()

    def tick(self, now: float) -> None:
        """Tell the owner of the doubts that have lasted for too long."""
        for doubt in [each for doubts in self._doubts.values() for each in doubts]:
            if doubt.due is not None and doubt.due <= now:
                doubt.due = None
                self._owner.on_in_doubt(doubt.session, doubt.grants)
