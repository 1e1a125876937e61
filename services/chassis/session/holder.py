"""The holder's side of all its streams: one link per server, dialled again for ever.

Each link has a reader task and a writer task. Calls of the owner (`report`, `post`) gather and leave with the
next frames. The readers hand messages of the servers to the owner in batches, in the event loop.

Hazards: call all methods from one event loop. A link is cut by cancelling its *call*, never a pending read;
the reader then sees the end. A server that has left the address book keeps its stream until that breaks.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import grpc

from services.chassis.lease.effects import HolderEffects
from services.chassis.lease.frames import Attach, Report
from services.chassis.lease.holder import HolderRules
from services.chassis.lease.stream import HolderStream
from services.chassis.lease.timing import LeaseTiming
from services.chassis.process.backoff import Backoff
from services.chassis.process.clock import Clock, SystemClock
from services.chassis.process.coalescing import Coalescer
from services.chassis.process.fresh_ids import fresh_uuid
from services.chassis.process.lifecycle import is_being_cancelled
from services.chassis.session.codec import HopCodec
from services.chassis.session.owners import HolderOwner
from services.chassis.telemetry.logs import logger

log = logger(__name__)


class _Link:
    """One dialled stream."""

    __slots__ = ("call", "is_cut", "wanted")

    def __init__(self, call: Any) -> None:
        self.call = call
        self.is_cut = False
        self.wanted = asyncio.Event()

    def cut(self) -> None:
        self.is_cut = True
        self.wanted.set()
        self.call.cancel()


class SessionHolder:
    def __init__(
        self,
        *,
        attach: Attach,
        timing: LeaseTiming,
        codec: HopCodec,
        open_stream: Callable[[str], Any],
        owner: HolderOwner,
        forget: Callable[[str], Awaitable[None]] | None = None,
        clock: Clock | None = None,
        fresh_id: Callable[[], str] = fresh_uuid,
    ) -> None:
        """`attach` is what the holder says of itself; the session fills in the instance and the leases. `open_stream`
        gives a new grpc.aio stream-stream call to an address. `forget` closes the channel to an address that has left
        the address book and has no stream any more. `fresh_id` names each life of the holder."""
        self._codec = codec
        self._open_stream = open_stream
        self._owner = owner
        self._clock: Clock = clock or SystemClock()
        self._forget = forget
        # They know all streams, leases and reports.
        self.rules = HolderRules(attach, timing, fresh_instance=fresh_id)
        self._links: dict[str, _Link] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._wanted: frozenset[str] = frozenset()
        self._reports_made = 0
        self._is_kicked = False
        self._coalescer = Coalescer(self._count_grants)
        self._is_running = False
        self._stop_asked = asyncio.Event()
        self._drained = asyncio.Event()
        self._stopped = asyncio.Event()

    # ── for the hop ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def instance_id(self) -> str:
        return self.rules.instance_id

    @property
    def demand(self) -> int:
        """How much work waits for credit, at all servers together, by what they said last."""
        return sum(stream.demand for stream in self.rules.streams.values())

    def may_start(self) -> bool:
        """False from the self-fence until a server answers again. Running work goes on meanwhile."""
        return self.rules.may_start(self._clock.monotonic())

    def new_report_id(self) -> str:
        """Unique in this process, also when its instance changes."""
        self._reports_made += 1
        return str(self._reports_made)

    def report(self, report_id: str, lease_id: str, epoch: int, body: object, *, ends_lease: bool) -> None:
        """Keep the report and repeat it, to any server, until it is answered.

        One that ends its lease frees the place at once.
        """
        self.rules.report(Report(report_id, lease_id, epoch, body), ends_lease=ends_lease)
        self._kick()

    def post(self, address: str, notes: Iterable[object]) -> None:
        """Send notes to the server whose address came with `on_notes`. They are lost with the stream."""
        self.rules.post(address, notes)
        self._kick()

    def set_capacity(self, capacity: int) -> None:
        """Set how many leases the holder wants at once, over all servers."""
        if capacity != self.rules.capacity:
            self.rules.set_capacity(capacity)
            self._kick()

    async def drain(self) -> None:
        """Take no more grants. Returns when no lease and no unanswered report is left."""
        self.rules.drain()
        self._kick()
        await self._drained.wait()

    async def stop(self) -> None:
        """End all streams. `run` returns, or does not begin."""
        self._stop_asked.set()
        for link in list(self._links.values()):
            link.cut()
        if self._is_running:
            await self._stopped.wait()

    async def run(self, addresses: AsyncIterator[frozenset[str]]) -> None:
        """Keep one stream with each of the present addresses, until `stop`."""
        self._is_running = True
        try:
            async with asyncio.TaskGroup() as group:
                follower = group.create_task(self._follow(addresses, group))
                ticker = group.create_task(self._tick())
                await self._stop_asked.wait()
                follower.cancel()
                ticker.cancel()
                for keeper in self._keepers.values():
                    keeper.cancel()
        finally:
            self._stopped.set()

    async def _follow(self, addresses: AsyncIterator[frozenset[str]], group: asyncio.TaskGroup) -> None:
        async for present in addresses:
            self._wanted = present
            for address in sorted(present):
                keeper = self._keepers.get(address)
                if keeper is None or keeper.done():
                    self._keepers[address] = group.create_task(self._keep(address))

    # ── one server ────────────────────────────────────────────────────────────────────────────────────────

    async def _keep(self, address: str) -> None:
        """Dial again and again, as long as the address is wanted."""
        # A short break must end within the grace that a server gives, so the wait stays well below it.
        cap = self.rules.timing.beat / 6
        backoff = Backoff(first=cap / 10, cap=cap)
        while not self._stop_asked.is_set():
            if address not in self._wanted:
                if self._forget is not None:
                    await self._forget(address)
                if address not in self._wanted:  # it may have come back meanwhile
                    del self._keepers[address]
                    return
            if await self._converse(address):
                backoff.reset()
            await self._clock.sleep(backoff.next())

    async def _converse(self, address: str) -> bool:
        """Run one stream until its end. True when it ever was live."""
        link = _Link(self._open_stream(address))
        self._links[address] = link
        self.rules.dialled(address, self._clock.monotonic())
        writer = asyncio.create_task(self._write(address, link))
        self._kick()
        stream = self.rules.streams[address]
        try:
            await self._read(address, link, stream)
        finally:
            link.cut()
            del self._links[address]
            self.rules.lost(address)
            self._kick()
            # gRPC never ends a write on a call that was cancelled while it connected.
            writer.cancel()
            await asyncio.wait([writer])
            if not writer.cancelled():
                writer.result()
        return stream.is_live

    async def _read(self, address: str, link: _Link, stream: HolderStream) -> None:
        try:
            while (message := await link.call.read()) is not grpc.aio.EOF:
                frame = self._codec.decode_server_frame(message)
                self.perform(address, self.rules.receive(address, frame, self._clock.monotonic()))
                self._kick()
        except grpc.RpcError as error:
            # A server that is not there yet is dialled many times, which is not worth a log line each.
            if stream.is_live and not self._stop_asked.is_set():
                log.info("session lost", address=address, code=str(error.code()), detail=error.details())
        except asyncio.CancelledError:
            # A read of a call that we cut raises the same as the cancellation of this task.
            if not link.is_cut or is_being_cancelled():
                raise

    async def _write(self, address: str, link: _Link) -> None:
        rules, clock = self.rules, self._clock
        try:
            while not link.is_cut:
                await link.wanted.wait()
                link.wanted.clear()
                while (frame := rules.take_frame(address, clock.monotonic())) is not None:
                    if frame.beat is not None:
                        told = self._owner.beat_notes(address, is_full=frame.beat.is_full)
                        frame.notes = [*frame.notes, *told]
                    for message in self._codec.encode_holder_frame(frame):
                        await link.call.write(message)
        except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            return  # the reader sees the same end, with its cause
        except asyncio.CancelledError:
            if not link.is_cut or is_being_cancelled():
                raise

    # ── all servers ───────────────────────────────────────────────────────────────────────────────────────

    async def _tick(self) -> None:
        while True:
            interval = self.rules.timing.beat / 8
            due = self._clock.monotonic() + interval
            await self._clock.sleep(interval)
            now = self._clock.monotonic()
            self.rules.loop_lag = max(0.0, now - due)
            self.perform("", self.rules.tick(now))
            self._kick()

    def _kick(self) -> None:
        """Wake the writers after the callbacks that are ready now, so that their calls share one frame."""
        if not self._is_kicked:
            self._is_kicked = True
            asyncio.get_running_loop().call_soon(self._wake_writers)

    def _wake_writers(self) -> None:
        self._is_kicked = False
        for address in self.rules.owing():
            link = self._links.get(address)
            if link is not None:
                link.wanted.set()
        if self.rules.has_uncounted:
            self._coalescer.wanted()
        if self.rules.is_drained:
            self._drained.set()

    def _count_grants(self) -> None:
        self.rules.count_grants()
        self._kick()

    def perform(self, address: str, effects: HolderEffects) -> None:
        """Do what the rules ask for, in the order of the fields."""
        owner = self._owner
        if effects.reports_taken:
            owner.on_reports_taken(effects.reports_taken)
        if effects.reports_refused:
            owner.on_reports_refused(effects.reports_refused)
        if effects.lost:
            owner.on_revoked(effects.lost)
        if effects.grants:
            owner.on_grants(effects.grants)
        if effects.revoked:
            owner.on_revoked(effects.revoked)
        if effects.notes:
            owner.on_notes(address, effects.notes)
        if effects.has_resumed:
            owner.on_resumed()
        if effects.end_reason:
            reason, fresh_instance_id = effects.end_reason, self.rules.instance_id
            log.warning("all leases ended", reason=reason, fresh_instance_id=fresh_instance_id)
            owner.on_ended(reason)
        if effects.has_fenced:
            log.warning("not heard by any server: nothing new is started")
            owner.on_fenced()
        for target, reason in effects.redials:
            self._redial(target, reason)

    def _redial(self, address: str, reason: str) -> None:
        link = self._links.get(address)
        if link is not None and not link.is_cut:
            log.info("session given up", address=address, reason=reason)
            link.cut()
