"""All sessions that one server replica serves, and the fate of their instances.

Durable effects go through the store. An attach opens the instance. All beats that have gathered are renewed in
one statement (`run_beats`). An instance ends when its stream has closed and no replica has heard it for the
grace, or by the sweep (`run_reaper`). While the store is away, beats wait unanswered and no instance is judged.

A grant that was sent on a broken stream is in doubt until the instance attaches again or ends. Nothing else can
settle it, because the holder may be at work while its other streams are open.

The server cannot end a stream that its holder does not read: gRPC keeps it, with its buffers, until the holder
reads or cancels. So unread streams count as sessions, and a caller with `unread_max` of them gets no further one.
The streams of one key are limited, so that no key can take all sessions of a server. Refused streams may stay open
unread too, and are counted apart.

A stream that has no room for more unanswered reports (room.py) is not read, and its next beat may be behind the
unread frames. So while answers go out, its instance is renewed as if it had been heard, and the holder gets a
sign of life. When no answers go out, the holder notices the silence and dials again.

Hazard: an instance may be attached here twice for a moment, when a stream has died unnoticed. The newer stream
stays, and the older one is closed with SUPERSEDED.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Coroutine, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.identity.callers import CallerKind, Identity, caller
from services.chassis.lease.frames import Grant, Refused
from services.chassis.lease.server import ServerSessionRules, ServerState
from services.chassis.lease.timing import LeaseTiming
from services.chassis.process.clock import Clock, SystemClock
from services.chassis.session.codec import HopCodec
from services.chassis.session.owners import AttachRefused, SessionOwner
from services.chassis.session.reaper import SessionReaper, SweepGuard
from services.chassis.session.room import KEY_BYTES_MAX, KEY_LEASES_MAX, STREAM_BYTES_MAX, CallerRoom, StreamRoom
from services.chassis.session.server import Conversation, ServerSession
from services.chassis.session.store import EndedInstance, SessionStore
from services.chassis.telemetry.logs import logger

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class SessionLimits:
    # Streams at once, attached or not. A holder that is refused uses another replica.
    sessions_max: int = 5_000
    # Streams of one key, which is for the runners of one workspace. Our own services have no such limit.
    key_sessions_max: int = 500
    # Refused streams of one key that are still open. Beyond it a stream ends with a status and not with a fault,
    # because a fault has to be read.
    key_refused_max: int = 100
    # Unread streams of one caller that were cut and are still open. Each holds up to 8 MB.
    unread_max: int = 20
    # For these see room.py.
    stream_bytes_max: int = STREAM_BYTES_MAX
    key_bytes_max: int = KEY_BYTES_MAX
    key_leases_max: int = KEY_LEASES_MAX


@dataclass(slots=True)
class _Doubt:
    """Grants sent on a stream that is gone."""

    session: ServerSession
    grants: list[Grant]
    # When the owner is told that the instance has not come back. None: it has been told.
    due: float | None


class SessionRegistry:
    def __init__(
        self,
        *,
        store: SessionStore,
        timing: LeaseTiming,
        server: str,
        codec: HopCodec,
        owner: SessionOwner,
        limits: SessionLimits = SessionLimits(),
    ) -> None:
        self._store = store
        self._timing = timing
        self._server = server
        self._codec = codec
        self._owner = owner
        self._clock: Clock = SystemClock()
        self._limits = limits
        # Streams by caller: served, cut because they were not read, and refused.
        self._open: Counter[Identity] = Counter()
        self._unread: Counter[Identity] = Counter()
        self._refused: Counter[Identity] = Counter()
        # A room lives as long as its sessions. Those that are over live on while their reports are unanswered.
        self._rooms: WeakValueDictionary[Identity, CallerRoom] = WeakValueDictionary()
        self._guard = SweepGuard(timing, self._clock.monotonic())
        self.reaper = SessionReaper(store, self._guard, self._clock, self._watched, self._instances_ended)
        self._conversations: dict[ServerSession, Conversation] = {}
        self._by_instance: dict[str, ServerSession] = {}
        # The beats to renew: each session with the number to answer.
        self._beats: dict[ServerSession, int] = {}
        self._beats_wanted = asyncio.Event()
        self._doubts: dict[str, list[_Doubt]] = {}
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
        rules, room = ServerSessionRules(uuid4().hex, self._server, self._timing), self._room()
        session = ServerSession(rules, room, self._clock)
        room.forget_with(session)
        conversation = Conversation(session, context, self._codec, self._owner, self, self._clock)
        who = caller()
        if refusal := self._refusal(who):
            self._count_refused(who, context)
            session.rules.refuse(*refusal)
            session.wanted.set()
        else:
            self._open[who] += 1
        self._conversations[session] = conversation
        try:
            await conversation.run()
        finally:
            closed_at = self._clock.monotonic()
            del self._conversations[session]
            self._beats.pop(session, None)
            self._closed(session, closed_at)
            if refusal is None:
                _take_one(self._open, who)
                if conversation.writing_since is not None:
                    _count_until_done(self._unread, who, context)

    def _refusal(self, who: Identity) -> tuple[str, str] | None:
        """Why this stream is not served: reason and message."""
        limits = self._limits
        if self._is_stopping:
            return "SERVER_STOPPING", "attach to another replica"
        if self._unread[who] >= limits.unread_max:
            return "NOT_READING", "cancel the streams that are not read before another is opened"
        if _is_key(who) and self._open[who] + self._unread[who] >= limits.key_sessions_max:
            return (
                "KEY_SESSIONS_EXCEEDED",
                f"this key has {limits.key_sessions_max} sessions here: end some, or use another key",
            )
        if self._open.total() + self._unread.total() >= limits.sessions_max:
            return "TOO_MANY_SESSIONS", "attach to another replica"
        return None

    def _count_refused(self, who: Identity, context: Any) -> None:
        if _is_key(who) and self._refused[who] >= self._limits.key_refused_max:
            raise Refusal("KEY_SESSIONS_EXCEEDED", "cancel the streams that were refused before another is opened")
        _count_until_done(self._refused, who, context)

    def _room(self) -> StreamRoom:
        who = caller()
        room = self._rooms.get(who)
        if room is None:
            limits = self._limits
            bounds = (limits.key_bytes_max, limits.key_leases_max) if _is_key(who) else ()
            room = self._rooms[who] = CallerRoom(*bounds)
        return StreamRoom(room, self._limits.stream_bytes_max)

    async def stop(self) -> None:
        """Close all streams, and end no instance."""
        self._is_stopping = True
        for session in list(self._conversations):
            session.rules.refuse("SERVER_STOPPING", "attach to another replica")
            session.wanted.set()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # ── attach ────────────────────────────────────────────────────────────────────────────────────────────

    def attaching(self, session: ServerSession) -> None:
        # The reader goes on meanwhile, so that frames before the answer are refused.
        self._spawn(self._attach(session))

    async def _attach(self, session: ServerSession) -> None:
        rules, attach = session.rules, session.attach
        try:
            refused = await self._owner.admit(attach)
            is_open = await self._store.open(attach)
        except AttachRefused as refusal:
            rules.refuse(refusal.reason, refusal.message)
        except DependencyUnavailable as away:
            self._guard.failed(self._clock.monotonic())
            log.warning("attach refused while the database is away", holder=attach.holder, error=str(away))
            rules.refuse("DATABASE_AWAY", "the instance cannot be opened now; attach again")
        else:
            if is_open:
                rules.accept(refused)
            else:
                rules.refuse("INSTANCE_ENDED", "the instance was ended; attach anew under a fresh instance_id")
        finally:
            if rules.state is ServerState.OPENING:
                # A bug of ours: the holder must not wait for an answer that never comes.
                rules.refuse("INTERNAL", "the attach could not be judged")
                session.wanted.set()
        if rules.is_serving:
            self._attached(session)
        session.wanted.set()

    def _attached(self, session: ServerSession) -> None:
        instance_id = session.instance_id
        older = self._by_instance.pop(instance_id, None)
        self._by_instance[instance_id] = session
        if older is not None:
            older.rules.refuse("SUPERSEDED", "the instance has attached again")
            older.wanted.set()
        session.was_attached = True
        session.rules.set_demand(self._demand)
        log.info("holder attached", holder=session.attach.holder, instance_id=instance_id)
        self._owner.on_attached(session)
        self._settle_doubts(session)

    def _settle_doubts(self, session: ServerSession) -> None:
        """The attach has named all leases of the holder, which no longer reads its lost stream. So each grant that
        was sent there is either held or will never be started.
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

    def in_doubt(self, session: ServerSession, grants: list[Grant]) -> None:
        newer = self._by_instance.get(session.instance_id)
        due = self._clock.monotonic() + self._timing.grant_answer
        self._doubts.setdefault(session.instance_id, []).append(_Doubt(session, grants, due))
        if newer is not None and newer is not session:
            self._settle_doubts(newer)

    def _watched(self) -> Iterable[str]:
        """The owner's instances and those with a doubt, because nothing but their end may settle it."""
        return {*self._owner.watched(), *self._doubts}

    # ── beats ─────────────────────────────────────────────────────────────────────────────────────────────

    def renew(self, session: ServerSession, number: int) -> None:
        self._beats[session] = number
        self._beats_wanted.set()

    async def run_beats(self) -> None:
        """For ever: renew all gathered beats in one statement, and begin the next after its commit."""
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
                session.rules.ended()
            else:
                session.rules.renewed(number)
            session.wanted.set()
        return True

    # ── the end of a stream, the end of an instance ───────────────────────────────────────────────────────

    def _closed(self, session: ServerSession, closed_at: float) -> None:
        if not session.was_attached:
            return
        self._owner.on_closed(session)
        if self._by_instance.get(session.instance_id) is session:
            del self._by_instance[session.instance_id]
            if not self._is_stopping:
                self._spawn(self._after_close(session.instance_id, closed_at))

    async def _after_close(self, instance_id: str, closed_at: float) -> None:
        """End the instance after the grace, unless the store says that another replica has heard it."""
        try:
            mark = await self._store.mark_closed(instance_id)
            late = self._clock.monotonic() - closed_at
            # The store's time was asked late. Without this, a beat that came in between would not count.
            mark = replace(mark, time=mark.time - timedelta(seconds=late))
            await self._clock.sleep(max(0.0, self._timing.closed_grace - late))
            if instance_id in self._by_instance or self._is_stopping:
                return
            ended = await self._store.end_if_unheard(mark)
        except DependencyUnavailable as away:
            self._guard.failed(self._clock.monotonic())
            log.warning("the sweep will judge a closed instance", instance_id=instance_id, error=str(away))
            return
        if ended is not None:
            self._instances_ended([ended])

    def _instances_ended(self, ended: list[EndedInstance]) -> None:
        for each in ended:
            self._doubts.pop(each.instance_id, None)
            session = self._by_instance.get(each.instance_id)
            if session is not None:
                session.rules.ended()
                session.wanted.set()
        self._owner.on_ended(ended)

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────

    async def run_reaper(self) -> None:
        """For ever: tick the sessions, and sweep. These are two tasks, so that a slow database delays no tick."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_ticks())
            group.create_task(self._run_sweeps())

    async def _run_ticks(self) -> None:
        seconds = self._timing.beat / 4
        while True:
            due = self._clock.monotonic() + seconds
            await self._clock.sleep(seconds)
            now = self._clock.monotonic()
            self._guard.woke(due, now)
            self.tick(now)

    async def _run_sweeps(self) -> None:
        while True:
            await self._clock.sleep(self._timing.second_look / 2)
            await self.reaper.run_once()

    def tick(self, now: float) -> None:
        """Withdraw grants that could not be sent, cut unread streams, and close streams that never attached."""
        for session, conversation in list(self._conversations.items()):
            actions = session.rules.tick(now)
            if actions or session.rules.owes_beat_heard:
                conversation.perform(actions)
                session.wanted.set()
            if session.room.is_awaited and now - session.room.freed_at < self._timing.self_fence:
                self._stand_in(session)
            since = conversation.writing_since
            if since is not None and now - since > self._timing.self_fence:
                log.warning("stream cut: its holder does not read", session_id=session.session_id)
                conversation.cut()
            elif session.rules.attach is None and now - conversation.began_at > self._timing.self_fence:
                session.rules.refuse("ATTACH_EXPECTED", "no attach came")
                session.wanted.set()
        for doubt in [each for doubts in self._doubts.values() for each in doubts]:
            if doubt.due is not None and doubt.due <= now:
                doubt.due = None
                self._owner.on_in_doubt(doubt.session, doubt.grants)

    def _stand_in(self, session: ServerSession) -> None:
        """Renew the instance in place of the beat that may be in the unread part of the stream."""
        if session.rules.is_serving:
            self._beats.setdefault(session, session.rules.beat_number)
            self._beats_wanted.set()
            session.rules.say_something()
            session.wanted.set()

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


def _is_key(who: Identity) -> bool:
    """True for every caller but our own services."""
    return who.kind is not CallerKind.SERVICE


def _take_one(counts: Counter[Identity], who: Identity) -> None:
    counts[who] -= 1
    if not counts[who]:
        del counts[who]


def _count_until_done(counts: Counter[Identity], who: Identity, context: Any) -> None:
    """Count the stream until gRPC is done with it. That is not before its last write has ended."""
    counts[who] += 1
    context.add_done_callback(lambda _: _take_one(counts, who))
