"""A hop of the lease session for tests: real gRPC on loopback, whose owners on both sides record their calls.

`serving(...)` is one server replica with all its loops, `holding(...)` is one holder, and `RawHolder` is a hand-driven
stream that sends frames which no holder of ours would send. They use the messages of the runner hop.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc

from services.chassis.identity.callers import CallerKind, Identity, set_caller
from services.chassis.lease.frames import (
    Attach,
    Grant,
    HolderFrame,
    Refused,
    RefusedReport,
    Report,
    ServerFrame,
    StreamFault,
)
from services.chassis.lease.timing import EXECUTION, LeaseTiming
from services.chassis.session.codec import HopCodec
from services.chassis.session.holder import SessionHolder
from services.chassis.session.registry import SessionRegistry
from services.chassis.session.server import ServerSession
from services.chassis.session.store import EndedInstance
from services.chassis.session.stream_limits import SessionLimits
from tests.support.holder_owner import HolderOwner
from tests.support.probe import some
from tests.support.session_store import MemorySessionStore
from windlass.coordinator.v1 import sessions_pb2, sessions_pb2_grpc
from windlass.types.v1 import session_pb2

CODEC = HopCodec(sessions_pb2.SessionRequest, sessions_pb2.SessionResponse, holder_notes="progress")
FAST = EXECUTION.scaled(0.05)


def grant_of(lease_id: str, epoch: int = 1, inputs: bytes = b"{}") -> Grant:
    lease = session_pb2.Lease(lease_id=lease_id, epoch=epoch)
    return Grant(lease_id, epoch, sessions_pb2.RunGrant(lease=lease, inputs=inputs))


def report_of(report_id: str, lease_id: str, epoch: int = 1, output: bytes = b"{}") -> Report:
    head = session_pb2.ReportHead(report_id=report_id, lease_id=lease_id, epoch=epoch)
    body = sessions_pb2.RunReport(head=head)
    body.succeeded.output.json = output
    return Report(report_id, lease_id, epoch, body)


class ServerOwner:
    """Acknowledges every report of epoch ≥ 1 at once, unless a test says otherwise, and records all other calls."""

    def __init__(self) -> None:
        self.attached: list[ServerSession] = []
        self.taken: list[Grant] = []
        self.refused: list[Refused] = []
        self.withdrawn: list[Grant] = []
        self.in_doubt: list[Grant] = []
        self.reports: list[Any] = []
        self.notes: list[object] = []
        self.closed: list[ServerSession] = []
        self.ended: list[EndedInstance] = []
        self.unheard: list[str] = []
        self.drained: list[ServerSession] = []
        self.watching: set[str] = set()
        self.stale: dict[str, int] = {}
        self.may_admit = asyncio.Event()
        self.may_admit.set()
        self.admit_refusal: Exception | None = None
        self.is_acknowledging = True

    async def admit(self, attach: Attach) -> Sequence[Refused]:
        await self.may_admit.wait()
        if self.admit_refusal is not None:
            raise self.admit_refusal
        return [
            Refused(lease_id, epoch, "EPOCH_STALE")
            for lease_id, epoch in attach.held
            if epoch < self.stale.get(lease_id, 0)
        ]

    def on_attached(self, session: ServerSession) -> None:
        self.attached.append(session)

    def on_credit(self, session: ServerSession) -> None: ...

    def on_taken(self, session: ServerSession, grants: list[Grant]) -> None:
        self.taken += grants

    def on_refused(self, session: ServerSession, refused: list[Refused]) -> None:
        self.refused += refused

    def on_withdrawn(self, session: ServerSession, grants: list[Grant]) -> None:
        self.withdrawn += grants

    def on_in_doubt(self, session: ServerSession, grants: list[Grant]) -> None:
        self.in_doubt += grants

    def on_reports(self, session: ServerSession, reports: list[Report]) -> None:
        self.reports += reports
        if not self.is_acknowledging:
            return
        stale = [each for each in reports if each.epoch < self.stale.get(each.lease_id, 0)]
        session.refuse_reports([RefusedReport(each.report_id, "EPOCH_STALE") for each in stale])
        session.acknowledge([each.report_id for each in reports if each not in stale])

    def on_notes(self, session: ServerSession, notes: list[object]) -> None:
        self.notes += notes

    def on_drain(self, session: ServerSession) -> None:
        self.drained.append(session)

    def on_closed(self, session: ServerSession) -> None:
        self.closed.append(session)

    def on_unheard(self, instance_id: str) -> None:
        self.unheard.append(instance_id)

    def on_ended(self, ended: list[EndedInstance]) -> None:
        self.ended += ended

    def watched(self) -> Iterable[str]:
        return self.watching


class Worker(HolderOwner):
    """A holder's owner that knows its holder."""

    holder: SessionHolder

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: list[str] = []
        self.grants: list[Grant] = []
        self.beat_note: list[object] = []

    def done(self, report_id: str, lease_id: str, epoch: int = 1) -> None:
        """Report the end of a lease."""
        self.holder.report(report_id, lease_id, epoch, report_of(report_id, lease_id, epoch).body, ends_lease=True)

    def on_grants(self, grants: list[Grant]) -> None:
        self.grants += grants

    def beat_notes(self, address: str, *, is_full: bool) -> Sequence[object]:
        return self.beat_note


class _Servicer(sessions_pb2_grpc.RunnerSessionsServicer):
    def __init__(self, replica: "Replica") -> None:
        self._replica = replica

    async def Session(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        said = dict(context.invocation_metadata())
        if "kind" in said:
            set_caller(Identity(CallerKind(said["kind"]), said["name"], said["workspace"]))
        # This callback comes before those of the registry, in the same step of the loop.
        self._replica.streams.add(context)
        context.add_done_callback(lambda _: self._replica.streams.discard(context))
        await self._replica.registry.serve(context)


class Replica:
    """Stands for one server process."""

    def __init__(self, registry: SessionRegistry, owner: ServerOwner, server: Any, port: int) -> None:
        self.registry = registry
        self.owner = owner
        self.port = port
        # The streams that gRPC has not yet finished.
        self.streams: set[Any] = set()
        self._server = server
        self._loops: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start_loops(self) -> None:
        registry = self.registry
        runs = (registry.run_beats, registry.run_ticks, registry.run_sweeps)
        self._loops = [asyncio.create_task(run()) for run in runs]

    async def stop_loops(self) -> None:
        for loop in self._loops:
            loop.cancel()
            with suppress(asyncio.CancelledError):
                await loop

    async def kill(self) -> None:
        """End it without telling the holders."""
        await self.stop_loops()
        await self._server.stop(None)


@asynccontextmanager
async def serving(
    store: MemorySessionStore,
    *,
    timing: LeaseTiming = FAST,
    with_loops: bool = True,
    port: int = 0,
    limits: SessionLimits | None = None,
) -> AsyncIterator[Replica]:
    owner = ServerOwner()
    registry = SessionRegistry(store=store, timing=timing, server="server-0", codec=CODEC, owner=owner, limits=limits)
    server = grpc.aio.server()
    replica = Replica(registry, owner, server, server.add_insecure_port(f"127.0.0.1:{port}"))
    sessions_pb2_grpc.add_RunnerSessionsServicer_to_server(_Servicer(replica), server)
    await server.start()
    if with_loops:
        replica.start_loops()
    try:
        yield replica
    finally:
        await registry.stop()
        await replica.kill()


class Addresses:
    """An address book that the test writes."""

    def __init__(self, *addresses: str) -> None:
        self._queue: asyncio.Queue[frozenset[str]] = asyncio.Queue()
        self.set(*addresses)

    def set(self, *addresses: str) -> None:
        self._queue.put_nowait(frozenset(addresses))

    async def changes(self) -> AsyncIterator[frozenset[str]]:
        while True:
            yield await self._queue.get()


@asynccontextmanager
async def holding(
    *replicas: Replica, capacity: int = 10, timing: LeaseTiming = FAST, addresses: Addresses | None = None
) -> AsyncIterator[Worker]:
    worker = Worker()
    channels: dict[str, grpc.aio.Channel] = {}

    def open_stream(address: str) -> Any:
        if address not in channels:
            options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 100)]
            options.append(("grpc.use_local_subchannel_pool", 1))
            channels[address] = grpc.aio.insecure_channel(address, options=options)
        return sessions_pb2_grpc.RunnerSessionsStub(channels[address]).Session()

    async def forget(address: str) -> None:
        worker.forgotten.append(address)
        await channels.pop(address).close()

    worker.holder = SessionHolder(
        attach=Attach(
            "worker",
            capacity=capacity,
            version="1.0",
            labels={"zone": "a"},
            modules=("noop@1", "x.y@1"),
            idempotent_modules=("x.y@1",),
        ),
        timing=timing,
        codec=CODEC,
        open_stream=open_stream,
        owner=worker,
        forget=forget,
    )
    book = addresses or Addresses(*(replica.address for replica in replicas))
    running = asyncio.create_task(worker.holder.run(book.changes()))
    try:
        yield worker
    finally:
        await worker.holder.stop()
        await running
        for channel in channels.values():
            await channel.close()


class RawHolder:
    """Drives one stream frame by frame. There is no guard, so the server believes the name that it gives."""

    def __init__(self, channel: grpc.aio.Channel, who: Identity | None) -> None:
        said = None if who is None else (("kind", who.kind.value), ("name", who.name), ("workspace", who.workspace))
        self.call: Any = sessions_pb2_grpc.RunnerSessionsStub(channel).Session(metadata=said)

    async def say(self, frame: HolderFrame) -> None:
        for message in CODEC.encode_holder_frame(frame):
            await self.call.write(message)

    async def hear(self) -> ServerFrame | None:
        """The next frame; None when the server has ended the stream."""
        message = await self.call.read()
        return None if message is grpc.aio.EOF else CODEC.decode_server_frame(message)

    async def fault(self) -> StreamFault:
        """The fault in the next frame."""
        return some(some(await self.hear()).fault)

    async def attach(self, instance_id: str = "raw", **more: Any) -> ServerFrame:
        await self.say(HolderFrame(attach=Attach("raw", instance_id, 10, **more)))
        return some(await self.hear())


@asynccontextmanager
async def raw(replica: Replica, who: Identity | None = None, *options: tuple[str, int]) -> AsyncIterator[RawHolder]:
    channel = grpc.aio.insecure_channel(replica.address, options=[("grpc.use_local_subchannel_pool", 1), *options])
    holder = RawHolder(channel, who)
    try:
        yield holder
    finally:
        holder.call.cancel()
        await channel.close()
