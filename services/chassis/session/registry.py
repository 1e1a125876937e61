"""All sessions that one server replica serves, and the fate of their instances.

Durable effects go through the store. An attach opens the instance. All beats that have gathered are renewed in
one statement (`run_beats`). An instance ends when its stream has closed and no replica has heard it for the
grace (closed_streams.py), or by the sweep (`run_sweeps`). While the store is away, beats wait unanswered and no
instance is judged.

A stream that has no room for more unanswered reports (room.py) is not read, and its next beat may be behind the
unread frames. So while answers go out, its instance is renewed as if it had been heard, and the holder gets a
sign of life. When no answers go out, the holder notices the silence and dials again.

Hazard: an instance may be attached here twice for a moment, when a stream has died unnoticed. The newer stream
stays, and the older one is closed with SUPERSEDED.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.identity.callers import caller
from services.chassis.lease.effects import ServerEffects
from services.chassis.lease.server import INSTANCE_ENDED, ServerState
from services.chassis.lease.timing import LeaseTiming
from services.chassis.process.clock import Clock, SystemClock
from services.chassis.process.fresh_ids import fresh_uuid
from services.chassis.session.closed_streams import ClosedStreams
from services.chassis.session.codec import HopCodec
from services.chassis.session.owners import AttachRefused, SessionOwner
from services.chassis.session.reaper import SessionReaper, SweepGuard
from services.chassis.session.server import Conversation, ServerSession
from services.chassis.session.store import SessionStore
from services.chassis.session.stream_limits import SessionLimits, StreamLimits
from services.chassis.telemetry.logs import logger

log = logger(__name__)

STOPPING = ("SERVER_STOPPING", "attach to another replica")


class SessionRegistry:
    def __init__(
        self,
        *,
        store: SessionStore,
        timing: LeaseTiming,
        server: str,
        codec: HopCodec,
        owner: SessionOwner,
        limits: SessionLimits | None = None,
        clock: Clock | None = None,
        fresh_id: Callable[[], str] = fresh_uuid,
    ) -> None:
        """`fresh_id` names each session."""
        self._store = store
        self._timing = timing
        self._server = server
        self._codec = codec
        self._owner = owner
        self._clock: Clock = clock or SystemClock()
        self._fresh_id = fresh_id
        self._limits = StreamLimits(limits or SessionLimits())
        self._guard = SweepGuard(timing, self._clock.monotonic())
        self._conversations: dict[ServerSession, Conversation] = {}
        self._by_instance: dict[str, ServerSession] = {}
        self._closed_streams = ClosedStreams(
            store=store,
            timing=timing,
            guard=self._guard,
            owner=owner,
            clock=self._clock,
            attached=self._by_instance,
            spawn=self._spawn,
        )
        self._reaper = SessionReaper(store, self._guard, self._clock, self._watched, self._closed_streams.ended)
        # The beats to renew: each session with the number to answer.
        self._beats: dict[ServerSession, int] = {}
        self._beats_wanted = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._demand = 0
        self._is_stopping = False

    # ── for the hop ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def sessions(self) -> Collection[ServerSession]:
        return self._by_instance.values()

    def of_instance(self, instance_id: str) -> ServerSession | None:
        return self._by_instance.get(instance_id)

    def with_credit(self) -> list[ServerSession]:
        """The sessions with credit, most credit first."""
        found = [session for session in self._by_instance.values() if session.credit > 0]
        return sorted(found, key=lambda session: session.credit, reverse=True)

    def set_demand(self, demand: int) -> None:
        """State how much work waits here for credit. This is cheap: holders are told only of large changes."""
        if demand == self._demand:
            return
        self._demand = demand
        for session in self._by_instance.values():
            session.set_demand(demand)

    async def serve(self, context: Any) -> None:
        """The servicer method: serve one holder's stream until its end."""
        who = caller()
        room = self._limits.room(who)
        session = ServerSession(self._fresh_id(), self._server, self._timing, room, self._clock)
        room.forget_with(session)
        conversation = Conversation(session, context, self._codec, self._clock, self.perform)
        refusal = STOPPING if self._is_stopping else self._limits.open(who)
        if refusal is not None:
            self._limits.refused(who, context)
            session.close(*refusal)
        self._conversations[session] = conversation
        try:
            await conversation.run()
        finally:
            del self._conversations[session]
            self._beats.pop(session, None)
            self._closed_streams.closed(session, is_stopping=self._is_stopping)
            if refusal is None:
                self._limits.closed(who, context, is_unread=conversation.writing_since is not None)

    def perform(self, session: ServerSession, effects: ServerEffects) -> None:
        """Do what one frame of this session asks for, in the order of the fields."""
        owner = self._owner
        if effects.attach is not None:
            # The reader goes on meanwhile, so that frames before the answer are refused.
            self._spawn(self._attach(session))
        if effects.taken:
            owner.on_taken(session, effects.taken)
        if effects.refused:
            owner.on_refused(session, effects.refused)
        if effects.reports:
            owner.on_reports(session, effects.reports)
        if effects.notes:
            owner.on_notes(session, effects.notes)
        if effects.has_stated_credit:
            owner.on_credit(session)
        if effects.beat:
            self._beats[session] = effects.beat
            self._beats_wanted.set()
        if effects.has_begun_drain:
            owner.on_drain(session)

    async def stop(self) -> None:
        """Close all streams, and end no instance."""
        self._is_stopping = True
        for session in list(self._conversations):
            session.close(*STOPPING)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # ── attach ────────────────────────────────────────────────────────────────────────────────────────────

    async def _attach(self, session: ServerSession) -> None:
        attach = session.attach
        try:
            refused = await self._owner.admit(attach)
            is_open = await self._store.open(attach, caller().who)
        except AttachRefused as refusal:
            session.close(refusal.reason, refusal.message)
        except DependencyUnavailable as away:
            self._guard.failed(self._clock.monotonic())
            log.warning("attach refused while the database is away", holder=attach.holder, error=str(away))
            session.close("DATABASE_AWAY", "the instance cannot be opened now; attach again")
        else:
            if is_open:
                session.accept(refused)
            else:
                session.close(INSTANCE_ENDED.reason, INSTANCE_ENDED.message)
        finally:
            if session.state is ServerState.OPENING:
                # A bug of ours: the holder must not wait for an answer that never comes.
                session.close("INTERNAL", "the attach could not be judged")
        if session.is_serving:
            self._attached(session)

    def _attached(self, session: ServerSession) -> None:
        instance_id = session.instance_id
        older = self._by_instance.pop(instance_id, None)
        self._by_instance[instance_id] = session
        if older is not None:
            older.close("SUPERSEDED", "the instance has attached again")
        session.was_attached = True
        session.set_demand(self._demand)
        log.info("holder attached", holder=session.attach.holder, instance_id=instance_id)
        self._owner.on_attached(session)
        self._closed_streams.attached(session)

    def _watched(self) -> Iterable[str]:
        """The owner's instances and those with a doubt, because nothing but their end may settle it."""
        return {*self._owner.watched(), *self._closed_streams.in_doubt()}

    # ── beats ─────────────────────────────────────────────────────────────────────────────────────────────

    async def run_beats(self) -> None:
        """Renew all gathered beats in one statement, and begin the next after its commit, again and again."""
        pause = self._timing.beat / 20
        while True:
            await self._beats_wanted.wait()
            self._beats_wanted.clear()
            beats, self._beats = self._beats, {}
            if beats and not await self._renew(beats):
                for session, number in beats.items():
                    if session in self._conversations:
                        self._beats.setdefault(session, number)
                await self._clock.sleep(pause)
                self._beats_wanted.set()

    async def _renew(self, beats: dict[ServerSession, int]) -> bool:
        asked_at = self._clock.monotonic()
        try:
            refused = await self._store.renew({session.instance_id for session in beats})
        except DependencyUnavailable as away:
            self._guard.failed(self._clock.monotonic())
            log.warning("beats wait while the database is away", sessions=len(beats), error=str(away))
            return False
        self._guard.answered(asked_at, self._clock.monotonic())
        for session, number in beats.items():
            if session.instance_id in refused:
                session.ended()
            else:
                session.renewed(number)
        return True

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────

    async def run_ticks(self) -> None:
        """Tick the sessions at a fixed period, apart from `run_sweeps`, so that a slow database delays no tick."""
        seconds = self._timing.beat / 4
        while True:
            due = self._clock.monotonic() + seconds
            await self._clock.sleep(seconds)
            now = self._clock.monotonic()
            self._guard.woke(due, now)
            self.tick(now)

    async def run_sweeps(self) -> None:
        """End the instances that nobody hears, again and again."""
        while True:
            await self._clock.sleep(self._timing.second_look / 2)
            await self._reaper.run_once()

    def tick(self, now: float) -> None:
        """Withdraw grants that could not be sent, cut unread streams, and close streams that never attached."""
        for session, conversation in list(self._conversations.items()):
            if withdrawn := session.tick(now):
                self._owner.on_withdrawn(session, withdrawn)
            if session.room.is_awaited and now - session.room.freed_at < self._timing.self_fence:
                self._stand_in(session)
            since = conversation.writing_since
            if since is not None and now - since > self._timing.self_fence:
                log.warning("stream cut: its holder does not read", session_id=session.session_id)
                conversation.cut()
            elif session.state is ServerState.NEW and now - conversation.began_at > self._timing.self_fence:
                session.close("ATTACH_EXPECTED", "no attach came")
        self._closed_streams.tick(now)

    def _stand_in(self, session: ServerSession) -> None:
        """Renew the instance in place of the beat that may be in the unread part of the stream."""
        if session.is_serving:
            self._beats.setdefault(session, session.beat_number)
            self._beats_wanted.set()
            session.say_something()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a session's background work failed", "exception": failure, "task": task}
            )
