"""The coordinator, put together: read from top to bottom, it is the process.

Start order does not matter to anybody else: without dispatchers there is nothing to do, without the database or api
what is granted waits, without runners ready work waits.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from services.chassis import migrations
from services.chassis.addresses import AddressBook
from services.chassis.client import ChannelPool
from services.chassis.clock import SystemClock
from services.chassis.database import Database
from services.chassis.guard import Guard
from services.chassis.lane import Lane
from services.chassis.lease.profile import HolderProfile
from services.chassis.lease.timing import EXECUTION, RUN
from services.chassis.lifecycle import Process
from services.chassis.logs import logger, setup_logging
from services.chassis.metrics import LoopLag, MetricsEndpoint
from services.chassis.server import INTERNAL, GrpcServer
from services.chassis.session.holder import SessionHolder
from services.chassis.session.postgres import PostgresSessionStore
from services.chassis.session.registry import SessionRegistry
from services.chassis.telemetry import flush_tracing, setup_tracing
from services.coordinator.config import CoordinatorSettings
from services.coordinator.handler.arriving import ArrivalLoop
from services.coordinator.handler.assigning import Assigner
from services.coordinator.handler.carrier import Carrier
from services.coordinator.handler.settling import Settler
from services.coordinator.handler.tracing import Tracing
from services.coordinator.handler.turn import TurnLoop
from services.coordinator.loops.partitions import PartitionMaker
from services.coordinator.rpc import dispatch as dispatch_hop
from services.coordinator.rpc import runners as runner_hop
from services.coordinator.rpc.catalog import ApiReplicas, CatalogDefinitions, CatalogKeys
from services.coordinator.rpc.dispatch import SessionDispatch
from services.coordinator.rpc.graves import RunnerGraves
from services.coordinator.rpc.mailbox import DispatcherMailbox
from services.coordinator.rpc.reads import ReadServicer
from services.coordinator.rpc.rules import RULES
from services.coordinator.rpc.runners import SessionRunners
from services.coordinator.rpc.sessions import RunnerSessionsService
from services.coordinator.rpc.strays import StrayReports
from services.coordinator.rpc.watch import WatchHub, WatchServicer
from services.coordinator.store.codec import decode, encode
from services.coordinator.store.conditions import Condition
from services.coordinator.store.folding import fold_journal
from services.coordinator.store.journal import PostgresJournal
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
MIGRATIONS = Path(__file__).parent / "migrations"


def main() -> int:
    settings = CoordinatorSettings()
    setup_logging(service=SERVICE, replica=settings.replica, level=settings.log_level)
    process = Process(SERVICE, drain_seconds=settings.drain_seconds)

    async def wired(process: Process) -> None:
        await wire(settings, process)

    return process.main(wired)


async def wire(settings: CoordinatorSettings, process: Process) -> int:
    """The gRPC port that was bound."""
    holder_name = f"{SERVICE}-{settings.replica}"
    setup_tracing(
        service=SERVICE,
        version=version("windlass"),
        instance=settings.replica,
        endpoint=settings.otlp_endpoint,
    )
    await migrations.check(settings.database_url, SERVICE, MIGRATIONS)
    clock = SystemClock()
    run_timing = RUN.scaled(settings.lease_scale)
    execution_timing = EXECUTION.scaled(settings.lease_scale)

    # Connections: the flusher's own, one for take-overs, one for beats, and a few for everything that is read.
    writer = Lane(settings.database_url, name=f"{holder_name}-journal")
    loader = Lane(settings.database_url, name=f"{holder_name}-loader", statement_seconds=30.0)
    beats = Lane(settings.database_url, name=f"{holder_name}-sessions")
    database = Database(settings.database_url, name=holder_name)
    channels = ChannelPool(credential=settings.credential(SERVICE), tls=settings.tls)

    journal = PostgresJournal(writer, loader)
    reads = PostgresReads(database)
    replicas = ApiReplicas(AddressBook(settings.apis), channels)
    definitions = CatalogDefinitions(replicas)
    mailbox = DispatcherMailbox(AddressBook(settings.dispatchers), channels)
    strays = StrayReports(reads, mailbox.deliver)
    dispatch = SessionDispatch()
    runners = SessionRunners()

    arrivals = ArrivalLoop(
        journal=journal,
        definitions=definitions,
        dispatch=dispatch,
        fold=fold_journal,
        run_timing=run_timing,
        holder=holder_name,
        carrier=lambda: carrier,
    )
    carrier = Carrier(
        holder=holder_name, clock=clock, definitions=definitions, arrivals=arrivals, strays=strays
    )
    reader = ReadServicer(reads, decode, Condition)
    hub = WatchHub(reads, reader, decode, held=carrier.held.keys)
    settler = Settler(
        carrier=carrier,
        runners=runners,
        dispatch=dispatch,
        watchers=hub,
        tracing=Tracing(clock),
        clock=clock,
    )
    turns = TurnLoop(
        carrier=carrier,
        assigner=Assigner(runners),
        settler=settler,
        journal=journal,
        dispatch=dispatch,
        encode=encode,
        clock=clock,
    )

    graves = RunnerGraves(carrier, clock, run_timing.granted_again)
    registry = SessionRegistry(
        store=PostgresSessionStore(beats, "coordinator.runner_sessions", run_timing),
        timing=run_timing,
        server=holder_name,
        codec=runner_hop.CODEC,
        owner=runners,
    )
    runners.carrier, runners.registry, runners.graves = carrier, registry, graves
    holder = SessionHolder(
        profile=HolderProfile(holder=holder_name, version=version("windlass")),
        capacity=settings.executions_max,
        timing=execution_timing,
        codec=dispatch_hop.CODEC,
        open_stream=lambda address: CoordinatorSessionsStub(channels.get(address)).Session(),
        owner=dispatch,
    )
    dispatch.carrier, dispatch.holder = carrier, holder

    server = GrpcServer(
        settings.grpc_address,
        guard=Guard(RULES, keys=CatalogKeys(replicas, clock), credential=settings.credential(SERVICE)),
        limits=INTERNAL,
        tls=settings.tls,
    )
    add_RunnerSessionsServicer_to_server(RunnerSessionsService(registry), server)
    add_ReadServiceServicer_to_server(reader, server)
    add_WatchServiceServicer_to_server(WatchServicer(hub), server)

    lag = LoopLag()
    process.loop("turns", turns.run)
    process.loop("arrivals", arrivals.run)
    process.loop("timers", carrier.timers.run)
    process.loop("strays", strays.run)
    process.loop("graves", graves.run)
    process.loop("beats", registry.run_beats)
    process.loop("reaper", registry.run_reaper)
    process.loop("api addresses", replicas.run)
    process.loop("sessions", lambda: holder.run(AddressBook(settings.dispatchers).changes()))
    process.loop("watch catch-up", hub.run_catching_up)
    process.loop("watch poll", lambda: hub.run_polling(settings.lease_scale))
    process.loop("partitions", PartitionMaker(PostgresPartitions(database)).run)
    process.loop("loop lag", lag.run)
    process.loop("health", lambda: server.health.follow(database.probe))

    process.on_drain("hand back all executions", turns.hand_back_all)
    process.on_drain("wait until the dispatchers know", holder.drain)
    process.on_drain("close the sessions with dispatchers", holder.stop)
    process.on_drain("close the sessions with runners", registry.stop)
    process.on_close("spans", flush_tracing)
    for name, close in (
        ("database", database.close),
        ("journal connection", writer.close),
        ("loading connection", loader.close),
        ("beats connection", beats.close),
        ("channels", channels.close),
        ("server", lambda: server.stop(0.5)),
    ):
        process.on_close(name, close)

    if settings.metrics_address:
        metrics = MetricsEndpoint(settings.metrics_address)
        await metrics.start()
        process.on_close("metrics", metrics.stop)
    port = await server.start()
    log.info("serving", grpc_port=port, replica=settings.replica, lease_scale=settings.lease_scale)
    return port
