"""The server's side of one stream: the rules, a reader task and a writer task.

A hop works with the `ServerSession`. The `Conversation` runs it inside a servicer method.

Hazard: nothing here cancels a pending read or write of a call that goes on. A stream ends by a return from the
servicer method, and a pending read ends with it. A write that the holder does not read stays pending, because
gRPC sends the end after it and offers no way to cut a call on the server's side.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from services.chassis.lease.effects import ServerEffects
from services.chassis.lease.frames import Grant, RefusedReport
from services.chassis.lease.grants import LostGrants
from services.chassis.lease.server import ServerSessionRules, ServerState
from services.chassis.lease.timing import LeaseTiming
from services.chassis.process.clock import Clock
from services.chassis.process.coalescing import Coalescer
from services.chassis.session.codec import HopCodec
from services.chassis.session.room import StreamRoom


class ServerSession(ServerSessionRules):
    """The stream of one holder. No call waits: frames are sent when the stream is free."""

    def __init__(self, session_id: str, server: str, timing: LeaseTiming, room: StreamRoom, clock: Clock) -> None:
        # Set when there may be a frame to write.
        self.wanted = asyncio.Event()
        super().__init__(session_id, server, timing, self.wanted.set)
        self.room = room
        # The hop may keep here what it knows of this holder.
        self.data: Any = None
        # True: the hop got `on_attached`, so it must get `on_closed`.
        self.was_attached = False
        self._clock = clock
        self._coalescer = Coalescer(self.wanted.set)

    @property
    def instance_id(self) -> str:
        return self.attach.instance_id

    def grant(self, grants: Sequence[Grant]) -> bool:
        """Call this after the commit. False: the grants are not sent, so give the work to another holder."""
        return self.queue_grants(grants, self._clock.monotonic())

    def acknowledge(self, report_ids: Sequence[str]) -> None:
        super().acknowledge(report_ids)
        self.hold_room()
        self._coalescer.wanted()

    def refuse_reports(self, refused: Sequence[RefusedReport]) -> None:
        super().refuse_reports(refused)
        self.hold_room()

    def hold_room(self) -> None:
        """Take as much room as the unanswered reports need now."""
        self.room.hold(self.unanswered.size_bytes, self._clock.monotonic())

    def lost(self) -> LostGrants:
        grants = super().lost()
        self.room.hold_leases(0)
        self.room.close()
        return grants


class Conversation:
    def __init__(
        self,
        session: ServerSession,
        context: Any,
        codec: HopCodec,
        clock: Clock,
        perform: Callable[[ServerSession, ServerEffects], None],
    ) -> None:
        # The time at which the pending write began. None: none is pending.
        self.writing_since: float | None = None
        self.began_at = clock.monotonic()
        self._session = session
        self._context = context
        self._codec = codec
        self._clock = clock
        self._perform = perform
        self._over = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Run until the holder leaves, a fault is sent, or `cut`. Raises the failure of the reader or writer.

        The caller then says that the session is `lost`, so that the writer finds nothing more to send. A read or write
        that is pending ends with the call.
        """
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        for task in tasks:
            task.add_done_callback(self._ended)
        await self._over.wait()
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
        session, room = self._session, self._session.room
        while True:
            if room.is_full and session.is_serving:
                await room.wait()
                if self._over.is_set():
                    return False
            try:
                message = await self._context.read()
            except (grpc.aio.UsageError, grpc.RpcError):
                return False
            if message is grpc.aio.EOF or self._over.is_set():
                return False
            frame = self._codec.decode_holder_frame(message)
            effects = session.receive(frame, self._clock.monotonic())
            # This comes before `perform`, because an answer gives the room back.
            session.hold_room()
            if excess := room.hold_leases(session.held_count):
                session.close("HELD_EXCEEDED", excess)
                # A refused attach is forgotten at once, although the stream may stay open for long.
                room.hold_leases(session.held_count)
            else:
                self._perform(session, effects)
            if session.state is ServerState.CLOSED:
                # The writer sends the fault and ends the stream.
                return True

    async def _write(self) -> bool:
        session, wanted = self._session, self._session.wanted
        while True:
            await wanted.wait()
            wanted.clear()
            while (frame := session.take_frame()) is not None:
                try:
                    for message in self._codec.encode_server_frame(frame):
                        self.writing_since = self._clock.monotonic()
                        await self._context.write(message)
                except (grpc.aio.UsageError, grpc.RpcError):
                    return False
                self.writing_since = None
            if session.state is ServerState.CLOSED:
                return False
