"""A real coordinator between small peers: a catalog, and the sessions of a dispatcher and a runner (the real library).

The peers keep everything that they receive, so a test can read what a dispatcher or a runner would have seen.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import orjson

from services.api.app.identifiers import Identifiers
from services.chassis.grpc.client import CHANNEL_OPTIONS, Metadata
from services.chassis.grpc.errors import Refusal
from services.chassis.grpc.guard import Guard
from services.chassis.grpc.limits import INTERNAL
from services.chassis.grpc.server import GrpcServer
from services.chassis.identity.callers import ServiceCredential, services
from services.chassis.lease.frames import Attach, Grant, HolderFrame, Lease, Report, ServerFrame
from services.chassis.lease.timing import EXECUTION, RUN
from services.chassis.process.clock import SystemClock
from services.chassis.session.holder import SessionHolder
from services.chassis.session.registry import SessionRegistry
from services.coordinator.config import CoordinatorSettings
from services.coordinator.peers import dispatch as dispatch_hop
from services.coordinator.rpc import runners as runner_hop
from services.coordinator.wiring import CoordinatorService
from services.runner.wiring import RECONNECTS
from tests.support.holder_owner import HolderOwner
from tests.support.lease_hop import Addresses, ServerOwner
from tests.support.live_sessions import live_sessions
from tests.support.probe import eventually as probe_until
from tests.support.running_services import RunningService, started
from tests.support.session_store import MemorySessionStore
from windlass.api.v1.workspaces_pb2 import Role
from windlass.catalog.v1 import catalog_pb2, catalog_pb2_grpc, children_pb2, children_pb2_grpc
from windlass.coordinator.v1 import sessions_pb2 as runs_pb
from windlass.coordinator.v1.sessions_pb2_grpc import RunnerSessionsStub
from windlass.definition.examination import examine
from windlass.dispatcher.v1 import queue_pb2, queue_pb2_grpc, sessions_pb2, sessions_pb2_grpc

SCALE = 0.2
RUNNER_KEY = "runner-key"
EFFECT_SECRET = b"s" * 32
execution_id = Identifiers(SystemClock()).mint


async def eventually(probe: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true answer of the probe, which may be a coroutine function."""

    async def ask() -> Any:
        answer = probe()
        return await answer if asyncio.iscoroutine(answer) else answer

    return await probe_until(ask, seconds, getattr(probe, "__qualname__", "it"))


class Catalog(catalog_pb2_grpc.CatalogServiceServicer):
    def __init__(self) -> None:
        self.definitions: dict[str, bytes] = {}
        self.asked: list[str] = []
        # Runners' keys, with the workspace that each was made for.
        self.keys = {RUNNER_KEY: ""}

    def add(self, version_id: str, **definition: Any) -> str:
        self.definitions[version_id] = orjson.dumps(definition)
        return version_id

    async def GetVersion(self, request: Any, context: Any) -> Any:
        self.asked.append(request.version_id)
        definition = self.definitions.get(request.version_id)
        if definition is None:
            raise Refusal("VERSION_NOT_FOUND", "no such version")
        return catalog_pb2.GetVersionResponse(
            workspace="default",
            workflow="w",
            version=1,
            definition=definition,
            effect_secret=EFFECT_SECRET,
            template_references=orjson.dumps(examine(orjson.loads(definition)).references),
        )

    async def IdentifyKey(self, request: Any, context: Any) -> Any:
        for key, workspace in self.keys.items():
            if request.key_hash == hashlib.sha256(key.encode()).digest():
                return catalog_pb2.IdentifyKeyResponse(key_id=key, role=Role.RUNNER, workspace=workspace)
        raise Refusal("API_KEY_NOT_FOUND", "this key is unknown, expired or revoked")


class StageApi(children_pb2_grpc.ChildServiceServicer):
    """Starts children by keeping their orders."""

    def __init__(self) -> None:
        self.orders: list[Any] = []
        # The answers to the next starts. Without one, a start succeeds.
        self.refusals: list[Refusal] = []

    async def StartChild(self, request: Any, context: Any) -> Any:
        self.orders.append(request.order)
        if self.refusals:
            raise self.refusals.pop(0)
        return children_pb2.StartChildResponse()


class StageDispatcher(ServerOwner, sessions_pb2_grpc.CoordinatorSessionsServicer, queue_pb2_grpc.QueueServiceServicer):
    """Grants the executions that a test names, and acknowledges every report."""

    def __init__(self, lease_scale: float) -> None:
        super().__init__()
        timing = EXECUTION.scaled(lease_scale)
        self.registry = SessionRegistry(
            store=MemorySessionStore(timing),
            timing=timing,
            server="dispatcher-test",
            codec=dispatch_hop.codec(SystemClock()),
            owner=self,
        )
        self.reports: list[sessions_pb2.ExecutionReport] = []
        self.begun: list[sessions_pb2.ExecutionReport] = []
        self.finished: dict[str, sessions_pb2.ExecutionReport] = {}
        self.acknowledged: list[str] = []
        self.delivered: list[sessions_pb2.ExecutionMessage] = []
        self._epoch = int(time.time() * 1000)
        # True: messages are sent on to the session that was granted the execution last. False: the test sends them.
        self.carries_on = True
        # True: no mailbox takes a message.
        self.is_full = False
        self._holders: dict[str, Any] = {}

    async def Session(  # type: ignore[override] # reads and writes by the context
        self, request_iterator: Any, context: Any
    ) -> None:
        await self.registry.serve(context)

    async def Deliver(self, request: Any, context: Any) -> Any:
        if self.is_full:
            raise Refusal("MAILBOX_FULL", "too many messages wait to be read")
        self.delivered.append(request.message)
        holder = self._holders.get(request.message.execution_id)
        if self.carries_on and holder:
            holder.post([request.message])
        return queue_pb2.DeliverResponse(found=True)

    async def GetQueued(self, request: Any, context: Any) -> Any:
        return queue_pb2.GetQueuedResponse()

    ListQueued = ListFailed = GetFailed = ResolveFailed = FindRequests = GetQueued
    ConfigureWorkspace = GetQueuePlace = WakeParked = GetQueued

    def next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def grant(self, session: Any, grants: Sequence[sessions_pb2.ExecutionGrant]) -> None:
        assert session.take_credit(len(grants)) == len(grants)
        self._holders |= {each.lease.lease_id: session for each in grants}
        assert session.grant([Grant(g.lease.lease_id, g.lease.epoch, g) for g in grants])

    def order(self, version_id: str, *, id_: str = "", input_: Any = None, **more: Any) -> Any:
        grant = sessions_pb2.ExecutionGrant(**more)
        start = grant.start
        start.execution_id = id_ or execution_id()
        start.workspace, start.workflow, start.version, start.version_id = "default", "w", 1, version_id
        start.input = orjson.dumps(input_ or {})
        start.priority = 3
        start.create_time.GetCurrentTime()
        grant.grant_time.GetCurrentTime()
        grant.lease.lease_id, grant.lease.epoch = start.execution_id, self.next_epoch()
        return grant

    def on_notes(self, session: Any, notes: list[Any]) -> None:
        self.acknowledged += notes

    def on_reports(self, session: Any, reports: list[Report]) -> None:
        for report in reports:
            body: Any = report.body
            # The times at which a holder reports what has begun are its own affair.
            (self.begun if body.WhichOneof("report") == "begun" else self.reports).append(body)
            if body.WhichOneof("report") == "finished":
                self.finished[report.lease_id] = body
        session.acknowledge([report.report_id for report in reports])


class StageRunner(HolderOwner):
    """Answers each grant with the result of `work`. If it is None, the test answers. A runner that attaches while work
    waits needs its `work` from the start, because it is granted that at once."""

    def __init__(
        self,
        name: str,
        channel: Callable[[str], grpc.aio.Channel],
        *,
        capacity: int = 100,
        idempotent: Sequence[str] = (),
        modules: Sequence[str] = ("noop@1", "transform@1", "x.y@1"),
        wants_rendered: bool = False,
        work: Callable[[runs_pb.RunGrant], Any] = lambda grant: {},
        metadata: Metadata,
        lease_scale: float = SCALE,
    ) -> None:
        super().__init__()
        # Streams that were opened so far.
        self.opened = 0
        self.present: frozenset[str] = frozenset()
        self.addresses = Addresses()
        self.grants: list[runs_pb.RunGrant] = []
        self.progress: list[runs_pb.RunProgress] = []
        self.work = work
        self.holder = SessionHolder(
            attach=Attach(
                name,
                capacity=capacity,
                labels={"zone": "a"},
                modules=modules,
                idempotent_modules=idempotent,
                wants_rendered=wants_rendered,
            ),
            timing=RUN.scaled(lease_scale),
            codec=runner_hop.CODEC,
            open_stream=lambda address: self._open(channel(address), metadata),
            owner=self,
        )

    def attach(self, address: str) -> None:
        self.present |= {address}
        self.addresses.set(*self.present)

    def _open(self, channel: grpc.aio.Channel, metadata: Metadata) -> Any:
        self.opened += 1
        return RunnerSessionsStub(channel).Session(metadata=metadata)

    def on_grants(self, grants: list[Grant]) -> None:
        for grant in grants:
            work: Any = grant.work
            self.grants.append(work)
            outcome = self.work(work)
            if outcome is not None:
                self.answer(work, outcome)

    def answer(self, grant: runs_pb.RunGrant, outcome: Any, *, instance_id: str = "") -> None:
        """Report success with a dict as output, or a failure with the name of an Exception."""
        report = runs_pb.RunReport()
        report.head.instance_id = instance_id
        if isinstance(outcome, Exception):
            report.failed.type, report.failed.message = type(outcome).__name__, str(outcome)
            setattr(report.failed, "class", runs_pb.ERROR_CLASS_PERMANENT)
        else:
            report.succeeded.output.json = orjson.dumps(outcome)
        self.report(grant, report)

    def report(self, grant: runs_pb.RunGrant, report: runs_pb.RunReport) -> None:
        """Report on the run of the grant, with any outcome or none."""
        report.head.report_id = self.holder.new_report_id()
        report.head.lease_id, report.head.epoch = grant.lease.lease_id, grant.lease.epoch
        report.start_time.GetCurrentTime()
        report.end_time.GetCurrentTime()
        self.holder.report(report.head.report_id, grant.lease.lease_id, grant.lease.epoch, report, ends_lease=True)

    def beat_notes(self, address: str, *, is_full: bool) -> Sequence[Any]:
        notes, self.progress = self.progress, []
        return notes


class Stage:
    """Begins with the peers. A test adds coordinators and runners."""

    def __init__(self, database_url: str, directory: Path, lease_scale: float) -> None:
        self.database_url = database_url
        self.directory = directory
        self.secret = directory / "service.secret"
        self.secret.write_text("0123456789abcdef0123456789abcdef\n")
        self.catalog = Catalog()
        self.api = StageApi()
        self.lease_scale = lease_scale
        self.dispatcher = StageDispatcher(lease_scale)
        self.address = ""
        self._tasks: list[asyncio.Task[Any]] = []
        self._channels: list[grpc.aio.Channel] = []
        self.holders: list[SessionHolder] = []
        self.coordinators: list[RunningService] = []

    def spawn(self, work: Any) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    def channel(self, address: str) -> grpc.aio.Channel:
        channel = grpc.aio.insecure_channel(address, options=(*CHANNEL_OPTIONS, *RECONNECTS))
        self._channels.append(channel)
        return channel

    @property
    def api_metadata(self) -> tuple[tuple[str, str], ...]:
        return ServiceCredential.from_file(self.secret, "api").metadata

    async def open(self) -> None:
        rules = {
            "/windlass.catalog.v1.CatalogService/GetVersion": services("coordinator"),
            "/windlass.catalog.v1.CatalogService/IdentifyKey": services("coordinator"),
            "/windlass.catalog.v1.ChildService/StartChild": services("coordinator"),
            "/windlass.dispatcher.v1.CoordinatorSessions/Session": services("coordinator").within(None),
        } | {
            f"/windlass.dispatcher.v1.QueueService/{name}": services("coordinator")
            for name in (
                "Deliver",
                "GetQueued",
                "ListQueued",
                "ListFailed",
                "GetFailed",
                "GetQueuePlace",
                "ResolveFailed",
                "FindRequests",
                "ConfigureWorkspace",
                "WakeParked",
            )
        }
        credential = ServiceCredential.from_file(self.secret, "dispatcher")
        self.server = GrpcServer("127.0.0.1:0", guard=Guard(rules, credential=credential), limits=INTERNAL)
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(self.catalog, self.server)
        children_pb2_grpc.add_ChildServiceServicer_to_server(self.api, self.server)
        sessions_pb2_grpc.add_CoordinatorSessionsServicer_to_server(self.dispatcher, self.server)
        queue_pb2_grpc.add_QueueServiceServicer_to_server(self.dispatcher, self.server)
        self.address = f"127.0.0.1:{await self.server.start()}"
        self.spawn(self.dispatcher.registry.run_beats())
        self.spawn(self.dispatcher.registry.run_ticks())
        self.spawn(self.dispatcher.registry.run_sweeps())

    async def coordinator(self, replica: str = "0", port: int = 0, **more: Any) -> tuple[str, Any]:
        """Start a coordinator with more settings. Returns its address and its attached session with the dispatcher."""
        known = {session.instance_id for session in self.dispatcher.registry.sessions}
        settings = CoordinatorSettings(
            grpc_address=f"127.0.0.1:{port}",
            metrics_address="",
            database_url=self.database_url,
            service_secret_file=self.secret,
            lease_scale=self.lease_scale,
            replica=replica,
            dispatchers=self.address,
            apis=self.address,
            drain_seconds=5.0,
            output_store=self.directory / "outputs",
            **more,
        )
        service = await started("coordinator", settings, CoordinatorService)
        self.coordinators.append(service)
        sessions = self.dispatcher.registry.sessions
        fresh = await eventually(lambda: [s for s in sessions if s.instance_id not in known and s.credit > 0])
        return service.address, fresh[0]

    async def runner(
        self, address: str, name: str = "runner-0", *, capacity: int = 100, key: str = RUNNER_KEY, **more: Any
    ) -> StageRunner:
        """Start a runner with this key, or with "" as the service that a certificate names."""
        own = ServiceCredential.from_file(self.secret, "runner").metadata
        metadata = (("authorization", f"Bearer {key}"),) if key else own
        runner = StageRunner(
            name, self.channel, capacity=capacity, metadata=metadata, lease_scale=self.lease_scale, **more
        )
        self.holders.append(runner.holder)
        runner.attach(address)
        self.spawn(runner.holder.run(runner.addresses.changes()))
        await eventually(lambda: live_sessions(runner.holder))
        return runner

    async def with_runner(self, replica: str = "0", *, is_silent: bool = False, **more: Any) -> tuple[Any, StageRunner]:
        """Start a coordinator and a runner. Returns the session and the runner, which answers nothing when silent."""
        address, session = await self.coordinator(replica)
        runner = await self.runner(address, **more)
        if is_silent:
            runner.work = lambda grant: None
        return session, runner

    async def attached(self, address: str, instance_id: str, held: Sequence[Lease]) -> ServerFrame:
        """The answer of a coordinator to an attach that names these leases. The stream is open until the end."""
        metadata = (("authorization", f"Bearer {RUNNER_KEY}"),)
        call: Any = RunnerSessionsStub(self.channel(address)).Session(metadata=metadata)
        attach = HolderFrame(attach=Attach("by hand", instance_id, 1, held=held))
        for message in runner_hop.CODEC.encode_holder_frame(attach):
            await call.write(message)
        return runner_hop.CODEC.decode_server_frame(await call.read())

    def start(self, session: Any, version: str, **more: Any) -> Any:
        """Grant this session a new execution, or an old one with `id_` and `resumed`. Returns its order."""
        order = self.dispatcher.order(version, **more)
        self.dispatcher.grant(session, [order])
        return order

    async def start_at(self, runner: StageRunner, session: Any, version: str) -> Any:
        """The order of a new execution, once its first run is at the runner."""
        before = len(runner.grants)
        order = self.start(session, version)
        await eventually(lambda: len(runner.grants) > before)
        return order

    async def attach_also(self, runner: StageRunner, address: str) -> None:
        """Attach a runner that has a coordinator to a second one."""
        runner.attach(address)
        await eventually(lambda: live_sessions(runner.holder) == len(runner.present))

    async def close(self) -> None:
        for service in self.coordinators:
            service.process.stop()
        for service in self.coordinators:
            await service.ended
        for holder in self.holders:
            await holder.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.dispatcher.registry.stop()
        for channel in self._channels:
            await channel.close()
        await self.server.stop(0)


@asynccontextmanager
async def stage(database_url: str, directory: Path, lease_scale: float = SCALE) -> AsyncIterator[Stage]:
    made = Stage(database_url, directory, lease_scale)
    await made.open()
    try:
        yield made
    finally:
        await made.close()
