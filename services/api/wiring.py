"""The composition root of api: the only file that names concrete classes. Read it from the top down.

Hazard: the order of the hooks is the order of the end. First the waiting callers are told to ask elsewhere, then the
server gives what is under way its time, then the streams and connections go.
"""

from __future__ import annotations

import gc
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from services.api.app.admissions import AdmissionReader
from services.api.app.authenticator import Authenticator
from services.api.app.changes import Changes
from services.api.app.checking.children import Checkers
from services.api.app.executions import Executions
from services.api.app.identifiers import Identifiers
from services.api.app.key_material import KeyMint
from services.api.app.startables import Startables
from services.api.app.starts import Starter
from services.api.app.watching import EventWatcher
from services.api.config import ApiSettings
from services.api.peers.coordinators import CoordinatorReads
from services.api.peers.dispatchers import DispatcherQueue
from services.api.peers.enqueue_streams import EnqueueStreams
from services.api.peers.limits import LimitsConfigurer
from services.api.peers.replicas import Replicas
from services.api.peers.watch_streams import WatchStreams
from services.api.rpc.executions import ExecutionServicer
from services.api.rpc.rules import RULES
from services.api.rpc.runs import RunServicer
from services.api.rpc.starting import Starting
from services.api.rpc.workflows import CatalogServicer, WorkflowServicer
from services.api.rpc.workspaces import ApiKeyServicer, WorkspaceServicer
from services.api.store.audit import CHANNEL
from services.api.store.keys import PostgresKeys
from services.api.store.workflows import PostgresWorkflows
from services.api.store.workspaces import PostgresWorkspaces
from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.client import ChannelPool
from services.chassis.grpc.guard import Guard
from services.chassis.grpc.server import GrpcServer
from services.chassis.postgres import migrations
from services.chassis.postgres.database import Database
from services.chassis.postgres.notifications import Notifications
from services.chassis.process.batcher import Level
from services.chassis.process.clock import SystemClock
from services.chassis.process.lifecycle import Process
from services.chassis.telemetry.logs import setup_logging
from services.chassis.telemetry.metrics import LoopLag, MetricsEndpoint
from services.chassis.telemetry.tracing import Sampler, flush_tracing, setup_tracing
from windlass.api.v1 import (
    executions_pb2_grpc,
    runs_pb2_grpc,
    workflows_pb2_grpc,
    workspaces_pb2_grpc,
)
from windlass.catalog.v1 import catalog_pb2_grpc

SERVICE: Final = "api"
VERSION: Final = "0.1.0"
MIGRATIONS: Final = Path(__file__).parent / "migrations"


def main(settings: ApiSettings) -> int:
    setup_logging(service=SERVICE, replica=settings.replica, level=settings.log_level)
    setup_tracing(
        service=SERVICE,
        version=VERSION,
        instance=f"{SERVICE}-{settings.replica}",
        endpoint=settings.otlp_endpoint,
    )

    async def wire(process: Process) -> None:
        await start(process, settings)
        # What stands now stays; requests leave no cycles behind, so the collector need not look often.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)

    # A fifth of the time of a start goes by in the loop itself.
    return Process(SERVICE, drain_seconds=settings.drain_seconds).main(wire, new_loop=uvloop.new_event_loop)


@dataclass(frozen=True, slots=True)
class _Stores:
    keys: PostgresKeys
    workspaces: PostgresWorkspaces
    workflows: PostgresWorkflows


@dataclass(frozen=True, slots=True)
class _Peers:
    """The ways to the other services."""

    dispatchers: Replicas
    enqueuer: EnqueueStreams
    queue: DispatcherQueue
    reads: CoordinatorReads
    watches: WatchStreams


async def start(process: Process, settings: ApiSettings) -> int:
    """Everything of one api process; the port that it serves."""
    clock = SystemClock()
    await migrations.check(settings.database_url, SERVICE, MIGRATIONS)
    database = Database(settings.database_url, name=SERVICE, connections=settings.database_connections)
    process.on_close("database", database.close)
    stores = _Stores(PostgresKeys(database), PostgresWorkspaces(database), PostgresWorkflows(database))
    authenticator = Authenticator(stores.keys, clock)
    startables = Startables(stores.workflows, clock)
    limits_changed = Level()
    peers = _connect(process, settings)
    sampler = Sampler(settings.traces_per_second)
    credential = settings.credential(SERVICE)
    server = GrpcServer(
        settings.grpc_address,
        guard=Guard(RULES, keys=authenticator, credential=credential, sampler=sampler),
        tls=settings.tls,
        public=settings.public,
    )
    executions = Executions(peers.reads, peers.queue, peers.watches, clock)
    process.loop("admissions", AdmissionReader(peers.watches, executions).run)
    checkers = Checkers(settings.checkers)
    process.on_close("checkers", checkers.close)
    starter = Starter(
        startables,
        peers.enqueuer,
        peers.queue,
        checkers,
        Identifiers(clock),
        clock,
        enqueue_seconds=settings.enqueue_seconds,
    )
    watcher = EventWatcher(executions, peers.reads, peers.watches)
    workflows_pb2_grpc.add_WorkflowServiceServicer_to_server(
        WorkflowServicer(stores.workflows, startables, peers.reads, checkers),
        server,
    )
    executions_pb2_grpc.add_ExecutionServiceServicer_to_server(
        ExecutionServicer(
            Starting(starter, executions, peers.watches, authenticator, sampler, clock),
            executions,
            watcher,
            peers.reads,
            authenticator,
        ),
        server,
    )
    runs_pb2_grpc.add_RunServiceServicer_to_server(RunServicer(executions, peers.reads), server)
    workspaces_pb2_grpc.add_WorkspaceServiceServicer_to_server(
        WorkspaceServicer(stores.workspaces, startables, authenticator, limits_changed), server
    )
    workspaces_pb2_grpc.add_ApiKeyServiceServicer_to_server(
        ApiKeyServicer(stores.keys, stores.workspaces, authenticator, _key_mint(settings), clock), server
    )
    catalog_pb2_grpc.add_CatalogServiceServicer_to_server(
        CatalogServicer(stores.workflows, authenticator), server
    )
    changes = Changes(authenticator, startables, limits_changed)
    listener = Notifications(settings.database_url, [CHANNEL], changes.heard, name="api-listen")
    process.loop("changes", listener.run)
    process.loop("limits", LimitsConfigurer(stores.workspaces, peers.dispatchers, limits_changed).run)
    process.loop("health", lambda: server.health.follow(database.probe))
    await _serve_metrics(process, settings)
    port = await server.start()
    process.on_drain("waiting callers", peers.watches.drain)
    process.on_drain("server", lambda: server.stop(settings.drain_seconds * 0.8))
    process.on_close("spans", flush_tracing)
    return port


def _key_mint(settings: ApiSettings) -> KeyMint:
    file = settings.key_secret_file or settings.service_secret_file
    # Without either nobody calls api but clients: repeats are then known within this process only.
    return KeyMint(secrets.token_bytes(32)) if file is None else KeyMint.from_file(file)


def _connect(process: Process, settings: ApiSettings) -> _Peers:
    credential = settings.credential(SERVICE)
    # A pool for each service: what one does to its connections is nothing to the other.
    dispatchers, coordinators = (
        Replicas(
            name,
            AddressBook(source),
            ChannelPool(credential=credential, tls=settings.tls),
            call_seconds=settings.read_seconds,
        )
        for name, source in (
            ("the dispatcher", settings.dispatchers),
            ("the coordinator", settings.coordinators),
        )
    )
    watches = WatchStreams()
    # Whoever waits for a start subscribes just before the start goes out.
    enqueuer = EnqueueStreams(before_send=watches.flush)
    dispatchers.keep(enqueuer.serve)
    coordinators.keep(watches.serve)
    queue = DispatcherQueue(dispatchers)
    process.loop("dispatchers", dispatchers.run)
    process.loop("coordinators", coordinators.run)
    process.loop("late starts", enqueuer.sweep)
    process.loop("long waits", watches.sweep)
    process.on_close("dispatchers", dispatchers.close)
    process.on_close("coordinators", coordinators.close)
    return _Peers(dispatchers, enqueuer, queue, CoordinatorReads(coordinators), watches)


async def _serve_metrics(process: Process, settings: ApiSettings) -> None:
    process.loop("loop lag", LoopLag().run)
    if settings.metrics_address:
        endpoint = MetricsEndpoint(settings.metrics_address)
        await endpoint.start()
        process.on_close("metrics", endpoint.stop)
