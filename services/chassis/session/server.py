"""The server's side of one stream: the rules, a reader task and a writer task.

A hop works with the `ServerSession`. The `Conversation` runs it inside a servicer method.

Hazard: nothing here cancels a pending read or write of a call that goes on. A stream ends by a return from the
servicer method, and a pending read ends with it. A write that the holder does not read stays pending, because
gRPC sends the end after it and offers no way to cut a call on the server's side.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import grpc

from services.chassis.lease.actions import (
    CreditStated,
    GrantsInDoubt,
    GrantsRefused,
    GrantsTaken,
    GrantsWithdrawn,
    HolderDrains,
    NotesArrived,
    OpenInstance,
    RenewInstance,
    ReportsArrived,
    ServerAction,
)
from services.chassis.lease.frames import Attach, Grant, Lease, Refused, RefusedReport
from services.chassis.lease.server import ServerSessionRules, ServerState
from services.chassis.process.clock import Clock
from services.chassis.process.coalescing import Coalescer
from services.chassis.session.codec import HopCodec
from services.chassis.session.owners import SessionOwner
from services.chassis.session.room import StreamRoom


class ServerSession:
    """The attached stream of one holder. No call waits: frames are sent when the stream is free."""

    def __init__(self, rules: ServerSessionRules, room: StreamRoom, clock: Clock) -> None:
        self.rules = rules
        self.room = room
        # The hop may keep here what it knows of this holder.
        self.data: Any = None
        self.wanted = asyncio.Event()
        # True: the hop got `on_attached`, so it must get `on_closed`.
        self.was_attached = False
        self._clock = clock
        self._coalescer = Coalescer(self.wanted.set)

    @property
    def attach(self) -> Attach:
        """The attach, without its leases: for those ask `holds`."""
        assert self.rules.attach is not None, "a hop sees attached sessions only"
        return self.rules.attach

    @property
    def session_id(self) -> str:
        return self.rules.session_id

    @property
    def instance_id(self) -> str:
        return self.attach.instance_id

    @property
    def is_serving(self) -> bool:
        return self.rules.is_serving

    @property
    def credit(self) -> int:
        """How many leases the holder takes now."""
        return self.rules.credit

    def holds(self, lease_id: str, epoch: int) -> bool:
        """True when its newest attach or beat named the lease, whichever server granted it."""
        return self.rules.holds(lease_id, epoch)

    @property
    def held_count(self) -> int:
        return self.rules.held_count

    def take_credit(self, wanted: int) -> int:
        """Reserve up to `wanted` places for a claim. Each must then be used by `grant` or given back."""
        return self.rules.take_credit(wanted)

    def give_back(self, count: int) -> None:
        self.rules.give_back(count)
        # The confirmation of a credit may have waited for this.
        self.wanted.set()

    def grant(self, grants: Sequence[Grant]) -> bool:
        """Call this after the commit. False: the grants are not sent, so give the work to another holder."""
        is_queued = self.rules.grant(grants, self._clock.monotonic())
        self.wanted.set()
        return is_queued

    def acknowledge(self, report_ids: Sequence[str]) -> None:
        """Call this after the commit that holds the reports. Only a draining holder waits for the answer."""
        self.rules.acknowledge(report_ids)
        self.hold_room()
        if self.rules.state is ServerState.DRAINING:
            self.wanted.set()
        else:
            self._coalescer.wanted()

    def refuse_reports(self, refused: Sequence[RefusedReport]) -> None:
        """Call this after the commit that records the refusal."""
        self.rules.refuse_reports(refused)
        self.hold_room()
        self.wanted.set()

    def hold_room(self) -> None:
        """Take as much room as the unanswered reports need now."""
        self.room.hold(self.rules.unanswered.size_bytes, self._clock.monotonic())

    def revoke(self, revoked: Iterable[Refused]) -> None:
        self.rules.revoke(revoked)
        self.wanted.set()

    def claim(self, leases: Iterable[Lease]) -> None:
        """Take over leases: they are served here from now on. The holder refuses the others as NOT_HELD."""
        self.rules.claim(leases)
        self.wanted.set()

    def post(self, notes: Iterable[object]) -> None:
        self.rules.post(notes)
        self.wanted.set()

    def set_demand(self, demand: int) -> None:
        self.rules.set_demand(demand)
        self.wanted.set()

    def close(self, reason: str, message: str) -> None:
        """End the stream with a fault. Its instance ends too, unless a replica has heard it since."""
        self.rules.refuse(reason, message)
        self.wanted.set()

    def drain(self) -> None:
        """Ask the holder to use other servers. Its leases stay."""
        self.rules.drain()
        self.wanted.set()


class Registrar(Protocol):
    """The part of the registry that a conversation needs."""

    def attaching(self, session: ServerSession) -> None: ...

    def renew(self, session: ServerSession, number: int) -> None: ...

    def in_doubt(self, session: ServerSession, grants: list[Grant]) -> None: ...


class Conversation:
    def __init__(
        self,
        session: ServerSession,
        context: Any,
        codec: HopCodec,
        owner: SessionOwner,
        registrar: Registrar,
        clock: Clock,
    ) -> None:
        self.session = session
        # The time at which the pending write began. None: none is pending.
        self.writing_since: float | None = None
        self.began_at = clock.monotonic()
        self._rules = session.rules
        self._context = context
        self._codec = codec
        self._owner = owner
        self._registrar = registrar
        self._clock = clock
        self._over = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Run until the holder leaves, a fault is sent, or `cut`. Raises the failure of the reader or writer."""
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        for task in tasks:
            task.add_done_callback(self._ended)
        try:
            await self._over.wait()
        finally:
            self.perform(self._rules.lost())
            self.session.room.hold_leases(self._rules.held_count)
            self.session.room.close()
            # The writer finds nothing more to send. A read or write that is pending ends with the call.
            self.session.wanted.set()
        if self._failure is not None:
            raise self._failure

    def cut(self) -> None:
        """End the stream without sending a fault."""
        self._over.set()

    def _ended(self, task: asyncio.Task[bool]) -> None:
        """A reader or writer is done. The result True means that the other one ends the conversation."""
        if task.cancelled():
            self._over.set()
        elif (failure := task.exception()) is not None:
            self._failure = failure
            self._over.set()
        elif not task.result():
            self._over.set()

    async def _read(self) -> bool:
        session = self.session
        while True:
            if session.room.is_full and self._rules.is_serving:
                await session.room.wait()
                if self._over.is_set():
                    return False
            try:
                message = await self._context.read()
            except (grpc.aio.UsageError, grpc.RpcError):
                return False
            if message is grpc.aio.EOF or self._over.is_set():
                return False
            frame = self._codec.decode_holder_frame(message)
            actions = self._rules.receive(frame, self._clock.monotonic())
            # Before `perform`, because an answer gives the room back.
            session.hold_room()
            if excess := session.room.hold_leases(self._rules.held_count):
                self._rules.refuse("HELD_EXCEEDED", excess)
                # A refused attach is forgotten at once, although the stream may stay open for long.
                session.room.hold_leases(self._rules.held_count)
            else:
                self.perform(actions)
            if self._rules.state is ServerState.CLOSED:
                # The writer sends the fault and ends the stream.
                session.wanted.set()
                return True

    async def _write(self) -> bool:
        wanted, clock = self.session.wanted, self._clock
        while True:
            await wanted.wait()
            wanted.clear()
            while (frame := self._rules.take_frame(clock.monotonic())) is not None:
                try:
                    for message in self._codec.encode_server_frame(frame):
                        self.writing_since = clock.monotonic()
                        await self._context.write(message)
                except (grpc.aio.UsageError, grpc.RpcError):
                    return False
                self.writing_since = None
            if self._rules.state is ServerState.CLOSED:
                return False

    def perform(self, actions: list[ServerAction]) -> None:
        session, owner = self.session, self._owner
        for action in actions:
            match action:
                case ReportsArrived(reports):
                    owner.on_reports(session, reports)
                case GrantsTaken(grants):
                    owner.on_taken(session, grants)
                case CreditStated():
                    owner.on_credit(session)
                    session.wanted.set()
                case RenewInstance(number):
                    self._registrar.renew(session, number)
                case NotesArrived(notes):
                    owner.on_notes(session, notes)
                case GrantsRefused(refused):
                    owner.on_refused(session, refused)
                case GrantsWithdrawn(grants):
                    owner.on_withdrawn(session, grants)
                case GrantsInDoubt(grants):
                    self._registrar.in_doubt(session, grants)
                case HolderDrains():
                    owner.on_drain(session)
                case OpenInstance():
                    self._registrar.attaching(session)
