"""The server's side of one stream: rules, one reader and one writer task.

`ServerSession` is what a hop sees of it. `Conversation` runs it inside a servicer method.

Hazard: nothing here cancels a pending read or write of a call that goes on; a stream is ended by returning
from the servicer method, and what was pending then ends with it. But for a write that its holder does not read:
gRPC says the end behind it, and has no way to cut a call that it serves.
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
    """One holder's attached stream, for the hop.

    Every call is immediate; frames leave when the stream is free.
    """

    def __init__(self, rules: ServerSessionRules, room: StreamRoom, clock: Clock) -> None:
        self.rules = rules
        self.room = room
        # For the hop's own use: what it knows of this holder.
        self.data: Any = None
        self.wanted = asyncio.Event()
        # The hop has heard `on_attached`, and is owed `on_closed`.
        self.was_attached = False
        self._clock = clock
        self._coalescer = Coalescer(self.wanted.set)

    @property
    def attach(self) -> Attach:
        """Without its leases: see `holds`."""
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
        """How many leases it takes now."""
        return self.rules.credit

    def holds(self, lease_id: str, epoch: int) -> bool:
        """As of its newest attach or beat, whichever server granted it."""
        return self.rules.holds(lease_id, epoch)

    @property
    def held_count(self) -> int:
        return self.rules.held_count

    def take_credit(self, wanted: int) -> int:
        """Reserve up to `wanted` places before a claim is made; each is then used by `grant` or given
        back.
        """
        return self.rules.take_credit(wanted)

    def give_back(self, count: int) -> None:
        self.rules.give_back(count)
        # A confirmation may have waited for it.
        self.wanted.set()

    def grant(self, grants: Sequence[Grant]) -> bool:
        """After the commit. False: the holder will not hear of them, hand the work to another."""
        is_queued = self.rules.grant(grants, self._clock.monotonic())
        self.wanted.set()
        return is_queued

    def acknowledge(self, report_ids: Sequence[str]) -> None:
        """After the commit that holds them. Only a holder that drains waits for it."""
        self.rules.acknowledge(report_ids)
        self.hold_room()
        if self.rules.state is ServerState.DRAINING:
            self.wanted.set()
        else:
            self._coalescer.wanted()

    def refuse_reports(self, refused: Sequence[RefusedReport]) -> None:
        """After the commit that records the refusal."""
        self.rules.refuse_reports(refused)
        self.hold_room()
        self.wanted.set()

    def hold_room(self) -> None:
        """As much as its unanswered reports need now."""
        self.room.hold(self.rules.unanswered.size_bytes, self._clock.monotonic())

    def revoke(self, revoked: Iterable[Refused]) -> None:
        self.rules.revoke(revoked)
        self.wanted.set()

    def claim(self, leases: Iterable[Lease]) -> None:
        """Take-over: these are served here from now on.

        What it does not hold comes back as refused, NOT_HELD.
        """
        self.rules.claim(leases)
        self.wanted.set()

    def post(self, notes: Iterable[object]) -> None:
        self.rules.post(notes)
        self.wanted.set()

    def set_demand(self, demand: int) -> None:
        self.rules.set_demand(demand)
        self.wanted.set()

    def close(self, reason: str, message: str) -> None:
        """End the stream with a fault that says why. Its instance ends when nobody has heard it since."""
        self.rules.refuse(reason, message)
        self.wanted.set()

    def drain(self) -> None:
        """Ask the holder to use other servers; its leases stay."""
        self.rules.drain()
        self.wanted.set()


class Registrar(Protocol):
    """What a conversation needs of the registry."""

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
        # Since when a write has been pending; None: none is.
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
        """Until the holder leaves, a fault is told, or `cut`. Raises what a reader or writer broke on."""
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        for task in tasks:
            task.add_done_callback(self._ended)
        try:
            await self._over.wait()
        finally:
            self.perform(self._rules.lost())
            self.session.room.hold_leases(self._rules.held_count)
            self.session.room.close()
            # The writer finds nothing more to say; a read or write that is pending ends with the call.
            self.session.wanted.set()
        if self._failure is not None:
            raise self._failure

    def cut(self) -> None:
        """Give the stream up without another word."""
        self._over.set()

    def _ended(self, task: asyncio.Task[bool]) -> None:
        """A reader or writer is done; True says that the other one ends the conversation."""
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
            # Before anybody answers: what is answered was held.
            session.hold_room()
            if excess := session.room.hold_leases(self._rules.held_count):
                self._rules.refuse("HELD_EXCEEDED", excess)
                # An attach is forgotten with its refusal, which may be long before the stream is over.
                session.room.hold_leases(self._rules.held_count)
            else:
                self.perform(actions)
            if self._rules.state is ServerState.CLOSED:
                # The writer tells the fault and ends the stream.
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
