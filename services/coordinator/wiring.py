"""The coordinator, put together: read from top to bottom, it is the process.

Start order does not matter to anybody else: without dispatchers there is nothing to do, without the database or api
what is granted waits, without runners ready work waits.
"""

from __future__ import annotations

import asyncio
import gc
from importlib.metadata import version
from pathlib import Path

import uvloop

from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.client import ChannelPool
from services.chassis.grpc.guard import Guard
from services.chassis.grpc.server import GrpcServer
from services.chassis.identity.system_key import SystemKey
from services.chassis.lease.profile import HolderProfile
from services.chassis.lease.timing import EXECUTION, RUN
from services.chassis.postgres import migrations
from services.chassis.postgres.connection import BY_INDEX, PgConnection
from services.chassis.postgres.database import Database
from services.chassis.process.clock import SystemClock
from services.chassis.process.lifecycle import Process
from services.chassis.session.holder import SessionHolder
from services.chassis.session.postgres import PostgresSessionStore
from services.chassis.session.registry import SessionRegistry
from services.chassis.telemetry.logs import logger, setup_logging
from services.chassis.telemetry.metrics import LoopLag, MetricsEndpoint
from services.chassis.telemetry.tracing import flush_tracing, setup_tracing
from services.coordinator.app.after_commit import AfterCommit
from services.coordinator.app.assigning import Assigner
from services.coordinator.app.commit_loop import CommitLoop
from services.coordinator.app.dead_runners import DeadRunners
from services.coordinator.app.journal_loader import JournalLoader
from services.coordinator.app.key_checks import KeyCheck
from services.coordinator.app.misrouted_reports import ReportForwarder
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.app.partitions import PartitionMaker
from services.coordinator.app.tracing import Tracing
from services.coordinator.config import CoordinatorSettings
from services.coordinator.peers import dispatch as dispatch_hop
from services.coordinator.peers.catalog import KEY_SECONDS, ApiReplicas, CatalogDefinitions, CatalogKeys
from services.coordinator.peers.dispatch import SessionDispatch
from services.coordinator.peers.mailbox import DispatcherMailbox
from services.coordinator.rpc import runners as runner_hop
from services.coordinator.rpc.reads import ReadServicer
from services.coordinator.rpc.rules import RULES
from services.coordinator.rpc.run_reports import forwarded_command
from services.coordinator.rpc.runners import SessionRunners
from services.coordinator.rpc.sessions import RunnerSessionsService
from services.coordinator.rpc.watch import WatchHub, WatchServicer
from services.coordinator.store import codec
from services.coordinator.store.folding import fold_journal
from services.coordinator.store.journal import LOADING, PostgresJournal
from services.coordinator.store.partitions import PostgresPartitions
from services.coordinator.store.reads import PostgresReads
from windlass.coordinator.v1.reads_pb2_grpc import (
    add_ReadServiceServicer_to_server,
    add_WatchServiceServicer_to_server,
)
from windlass.coordinator.v1.sessions_pb2_grpc import add_RunnerSessionsServicer_to_server
from windlass.dispatcher.v1.sessions_pb2_grpc import CoordinatorSessionsStub

log = logger(__name__)

SERVICE = "coordinator"
# More than a dispatcher needs to bring a message to its holder: what is unread for a second is said again within half.
MAILBOX_SECONDS = 2.0
# Longer than any call lasts.
FORGET_SECONDS = 6.0
# Many journals at once, which others wait for: three such times, at most, find the one that is too much for it, and
# everything else moves again well within 15 s. And one that is, alone.
LOAD_SECONDS = 2.0
HARD_LOAD_SECONDS = 30.0
MIGRATIONS = Path(__file__).parent / "migrations"


def main(settings: CoordinatorSettings) -> int:
    # Thousands of executions live for seconds and hold no cycles: looking for some at every 700th object costs a tenth.
    gc.set_threshold(50_000, 20, 50)
    setup_logging(service=SERVICE, replica=settings.replica, level=settings.log_level)
    process = Process(SERVICE, drain_seconds=settings.drain_seconds)

    async def wired(process: Process) -> None:
        await wire(settings, process)

    # A third less time per awaited socket, and every turn awaits several.
    return process.main(wired, new_loop=uvloop.new_event_loop)


async def wire(settings: CoordinatorSettings, process: Process) -> int:
    """The gRPC port that was bound."""
    setup_tracing(
        service=SERVICE,
        version=version("windlass"),
        instance=f"{SERVICE}-{settings.replica}",
        endpoint=settings.otlp_endpoint,
    )
    await migrations.check(settings.database_url, SERVICE, MIGRATIONS)
    lines = Lines(settings)
    carrying = Carrying(settings, lines)
    registry = serve_runners(settings, lines, carrying)
    holder = hold_executions(settings, lines, carrying)
    server = GrpcServer(
        settings.grpc_address,
        guard=Guard(
            RULES,
            keys=SystemKey(settings.system_key_hash_file, others=lines.keys),
            credential=settings.credential(SERVICE),
        ),
        tls=settings.tls,
        public=settings.public,
    )
    add_RunnerSessionsServicer_to_server(RunnerSessionsService(registry), server)
    add_ReadServiceServicer_to_server(carrying.reader, server)
    add_WatchServiceServicer_to_server(WatchServicer(carrying.hub), server)

    carrying.run(settings, process)
    process.loop("beats", registry.run_beats)
    process.loop("reaper", registry.run_reaper)
    process.loop("keys", KeyCheck(lines.keys, registry, lines.clock, KEY_SECONDS * settings.lease_scale).run)
    process.loop("sessions", lambda: holder.run(AddressBook(settings.dispatchers).changes()))
    process.loop("api addresses", lines.replicas.run)
    process.loop("partitions", PartitionMaker(PostgresPartitions(lines.database)).run)
    process.loop("loop lag", LoopLag().run)
    process.loop("health", lambda: server.health.follow(lines.database.probe))

    process.on_drain("hand back all executions", lambda: leave(holder, carrying.commit_loop))
    process.on_drain("close the sessions with dispatchers", holder.stop)
    process.on_drain("close the sessions with runners", registry.stop)
    process.on_close("spans", flush_tracing)
    process.on_close("connections", lines.close)
    process.on_close("server", lambda: server.stop(0.5))
    if settings.metrics_address:
        metrics = MetricsEndpoint(settings.metrics_address)
        await metrics.start()
        process.on_close("metrics", metrics.stop)
    port = await server.start()
    log.info("serving", grpc_port=port, replica=settings.replica, lease_scale=settings.lease_scale)
    return port


async def leave(holder: SessionHolder, commit_loop: CommitLoop) -> None:
    """Returns when the dispatchers know. Draining begins first, or what goes back would come again at once."""
    async with asyncio.TaskGroup() as group:
        group.create_task(holder.drain())
        group.create_task(commit_loop.hand_back_all())


class Lines:
    """To the database and to the other services."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self.name = f"{SERVICE}-{settings.replica}"
        self.clock = SystemClock()
        # The flusher's own, two for take-overs, one for beats, and a few for everything that is read.
        self.writer = PgConnection(settings.database_url, name=f"{self.name}-journal", settings=BY_INDEX)
        self.loader, self.patient_loader = (
            PgConnection(
                settings.database_url, name=f"{self.name}-{name}", statement_seconds=seconds, settings=LOADING
            )
            for name, seconds in (("loader", LOAD_SECONDS), ("patient-loader", HARD_LOAD_SECONDS))
        )
        self.beats = PgConnection(settings.database_url, name=f"{self.name}-sessions")
        self.database = Database(settings.database_url, name=self.name)
        self.channels = ChannelPool(credential=settings.credential(SERVICE), tls=settings.tls)
        self.replicas = ApiReplicas(AddressBook(settings.apis), self.channels, self.forget)
        self.keys = CatalogKeys(self.replicas, self.clock)
        self.mailbox = DispatcherMailbox(AddressBook(settings.dispatchers), self.channels)

    async def forget(self, address: str) -> None:
        """Of a process that is gone. A call that has just begun comes to its end first."""
        await self.channels.forget(address, FORGET_SECONDS)

    async def close(self) -> None:
        await self.channels.close()
        for connection in (self.beats, self.loader, self.patient_loader, self.writer, self.database):
            await connection.close()


class Carrying:
    """What moves executions: the commit loop and all that feeds it. Sessions are joined on afterwards."""

    def __init__(self, settings: CoordinatorSettings, lines: Lines) -> None:
        journal = PostgresJournal(lines.writer, lines.loader, lines.patient_loader)
        reads = PostgresReads(lines.database)
        definitions = CatalogDefinitions(lines.replicas)
        self.run_timing = RUN.scaled(settings.lease_scale)
        self.misrouted_reports = ReportForwarder(reads, lines.mailbox.deliver)
        self.dispatch, self.runners = SessionDispatch(lines.name, forwarded_command), SessionRunners()
        self.loader = JournalLoader(
            journal=journal,
            definitions=definitions,
            dispatch=self.dispatch,
            fold=fold_journal,
            run_timing=self.run_timing,
            holder=lines.name,
            executions=lambda: self.executions,
        )
        self.executions = OwnedExecutions(
            clock=lines.clock,
            definitions=definitions,
            loader=self.loader,
            misrouted_reports=self.misrouted_reports,
            mailbox_seconds=MAILBOX_SECONDS * settings.lease_scale,
        )
        self.dead_runners = DeadRunners(self.executions, lines.clock, self.run_timing.granted_again)
        self.reader = ReadServicer(reads, codec.unseal, self.runners.modules_for)
        self.hub = WatchHub(reads, self.reader, owned=self.executions.by_id.keys)
        after_commit = AfterCommit(
            executions=self.executions,
            runners=self.runners,
            grants=self.runners,
            dispatch=self.dispatch,
            watchers=self.hub,
            tracing=Tracing(lines.clock),
            clock=lines.clock,
        )
        self.commit_loop = CommitLoop(
            executions=self.executions,
            assigner=Assigner(self.runners),
            after_commit=after_commit,
            journal=journal,
            dispatch=self.dispatch,
            codec=codec,
            clock=lines.clock,
        )

    def run(self, settings: CoordinatorSettings, process: Process) -> None:
        process.loop("commits", self.commit_loop.run)
        process.loop("journal loader", self.loader.run)
        process.loop("timers", self.executions.timers.run)
        process.loop("misrouted reports", self.misrouted_reports.run)
        process.loop("dead runners", self.dead_runners.run)
        process.loop("watch catch-up", self.hub.run_catching_up)
        process.loop("watch poll", lambda: self.hub.run_polling(settings.lease_scale))


def serve_runners(settings: CoordinatorSettings, lines: Lines, carrying: Carrying) -> SessionRegistry:
    runners, timing = carrying.runners, carrying.run_timing
    registry = SessionRegistry(
        store=PostgresSessionStore(lines.beats, "coordinator.runner_sessions", timing),
        timing=timing,
        server=lines.name,
        codec=runner_hop.CODEC,
        owner=runners,
    )
    runners.executions, runners.registry, runners.dead_runners = (
        carrying.executions,
        registry,
        carrying.dead_runners,
    )
    return registry


def hold_executions(settings: CoordinatorSettings, lines: Lines, carrying: Carrying) -> SessionHolder:
    dispatch = carrying.dispatch
    holder = SessionHolder(
        profile=HolderProfile(holder=lines.name, version=version("windlass")),
        capacity=settings.executions_max,
        timing=EXECUTION.scaled(settings.lease_scale),
        codec=dispatch_hop.CODEC,
        open_stream=lambda address: CoordinatorSessionsStub(lines.channels.get(address)).Session(),
        owner=dispatch,
        forget=lines.forget,
    )
    dispatch.executions, dispatch.watchers, dispatch.holder = carrying.executions, carrying.hub, holder
    return holder
