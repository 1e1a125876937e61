"""The composition root of api: the only file that names concrete classes. Read it from the top down.

Hazard: hooks run in their order here. First the waiting callers are told to ask another api, then the server finishes
the calls that are under way, then the streams and connections are closed.
"""

from __future__ import annotations

import gc
import secrets
from pathlib import Path
from typing import Final

import uvloop

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
from services.api.rpc.allowed_callers import RULES
from services.api.rpc.executions import ExecutionServicer
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
from services.chassis.process.lifecycle import Loop, Process
from services.chassis.telemetry.logs import setup_logging
from services.chassis.telemetry.metrics import serve_metrics
from services.chassis.telemetry.tracing import Sampler, flush_tracing, setup_tracing
from windlass.api.v1 import executions_pb2_grpc, runs_pb2_grpc, workflows_pb2_grpc, workspaces_pb2_grpc
from windlass.catalog.v1 import catalog_pb2_grpc

SERVICE: Final = "api"
VERSION: Final = "0.1.0"
MIGRATIONS: Final = Path(__file__).parent / "migrations"


def main(settings: ApiSettings) -> int:
    setup_logging(service=SERVICE, replica=settings.replica, level=settings.log_level)
    setup_tracing(
        service=SERVICE, version=VERSION, instance=f"{SERVICE}-{settings.replica}", endpoint=settings.otlp_endpoint
    )

    async def wired(process: Process) -> None:
        await wire(settings, process)
        # The objects made so far live as long as the process, and requests leave no cycles: collections can be rare.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)

    # A fifth of the time of a start is spent in the event loop itself.
    return Process(SERVICE, drain_seconds=settings.drain_seconds).main(wired, new_loop=uvloop.new_event_loop)


async def wire(settings: ApiSettings, process: Process) -> int:
    """Start everything. Returns the gRPC port that was bound."""
    await migrations.check(settings.database_url, SERVICE, MIGRATIONS)
    service = ApiService(settings)
    for name, run in service.loops():
        process.loop(name, run)
    process.on_close("database", service.database.close)
    process.on_close("dispatchers", service.dispatchers.close)
    process.on_close("coordinators", service.coordinators.close)
    process.on_close("checkers", service.checkers.close)
    await serve_metrics(process, settings.metrics_address)
    port = await service.server.start()
    process.on_drain("waiting callers", service.watches.drain)
    process.on_drain("server", lambda: service.server.stop(settings.drain_seconds * 0.8))
    process.on_close("spans", flush_tracing)
    return port


class ApiService:
    """The parts of one api, joined; nothing runs yet."""

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._clock = SystemClock()
        self._sampler = Sampler(settings.traces_per_second)
        self._limits_changed = Level()
        self._connect()
        self._join_peers()
        self._join_use_cases()
        self._serve()

    # ── database and stores ──────────────────────────────────────────────────────────────────────────────────────

    def _connect(self) -> None:
        settings = self._settings
        self.database = Database(settings.database_url, name=SERVICE, connections=settings.database_connections)
        self._keys = PostgresKeys(self.database)
        self._workspaces = PostgresWorkspaces(self.database)
        self._workflows = PostgresWorkflows(self.database)

    # ── peers ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _join_peers(self) -> None:
        settings = self._settings
        # Each service has a channel pool of its own, so that neither affects the connections of the other.
        self.dispatchers, self.coordinators = (
            Replicas(
                name,
                AddressBook(source),
                ChannelPool(credential=settings.credential(SERVICE), tls=settings.tls),
                call_seconds=settings.read_seconds,
            )
            for name, source in (("the dispatcher", settings.dispatchers), ("the coordinator", settings.coordinators))
        )
        self.watches = WatchStreams()
        # A caller that waits for a start subscribes just before the start is sent.
        self._enqueuer = EnqueueStreams(before_send=self.watches.flush)
        self._queue = DispatcherQueue(self.dispatchers)
        self._reads = CoordinatorReads(self.coordinators)
        self.dispatchers.keep(self._enqueuer.serve)
        self.coordinators.keep(self.watches.serve)

    # ── use cases ────────────────────────────────────────────────────────────────────────────────────────────────

    def _join_use_cases(self) -> None:
        self._authenticator = Authenticator(self._keys, self._clock)
        self._startables = Startables(self._workflows, self._clock)
        self._executions = Executions(self._reads, self._queue, self.watches, self._clock)
        self._watcher = EventWatcher(self._executions, self._reads, self.watches)
        self.checkers = Checkers(self._settings.checkers)
        self._starter = Starter(
            self._startables,
            self._enqueuer,
            self._queue,
            self.checkers,
            Identifiers(self._clock),
            self._clock,
            enqueue_seconds=self._settings.enqueue_seconds,
        )

    # ── servicers ────────────────────────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        settings, authenticator = self._settings, self._authenticator
        credential = settings.credential(SERVICE)
        server = self.server = GrpcServer(
            settings.grpc_address,
            guard=Guard(RULES, keys=authenticator, credential=credential, sampler=self._sampler),
            tls=settings.tls,
            public=settings.public,
        )
        starting = Starting(self._starter, self._executions, self.watches, self._sampler, self._clock)
        executions = ExecutionServicer(starting, self._executions, self._watcher, self._reads)
        workflows = WorkflowServicer(self._workflows, self._startables, self._reads, self.checkers)
        workspaces = WorkspaceServicer(self._workspaces, self._startables, authenticator, self._limits_changed)
        keys = ApiKeyServicer(self._keys, self._workspaces, authenticator, _key_mint(settings), self._clock)
        runs = RunServicer(self._executions, self._reads)
        workflows_pb2_grpc.add_WorkflowServiceServicer_to_server(workflows, server)
        executions_pb2_grpc.add_ExecutionServiceServicer_to_server(executions, server)
        runs_pb2_grpc.add_RunServiceServicer_to_server(runs, server)
        workspaces_pb2_grpc.add_WorkspaceServiceServicer_to_server(workspaces, server)
        workspaces_pb2_grpc.add_ApiKeyServiceServicer_to_server(keys, server)
        catalog = CatalogServicer(self._workflows, authenticator)
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(catalog, server)

    # ── loops ────────────────────────────────────────────────────────────────────────────────────────────────────

    def loops(self) -> list[tuple[str, Loop]]:
        changes = Changes(self._authenticator, self._startables, self._limits_changed)
        listener = Notifications(self._settings.database_url, [CHANNEL], changes.heard, name="api-listen")
        limits = LimitsConfigurer(self._workspaces, self.dispatchers, self._limits_changed)
        return [
            ("dispatchers", self.dispatchers.run),
            ("coordinators", self.coordinators.run),
            ("late starts", self._enqueuer.sweep),
            ("long waits", self.watches.sweep),
            ("admissions", self._watcher.run),
            ("changes", listener.run),
            ("limits", limits.run),
            ("health", lambda: self.server.health.follow(self.database.probe)),
        ]


def _key_mint(settings: ApiSettings) -> KeyMint:
    file = settings.key_secret_file or settings.service_secret_file
    # Without either file only clients call api, and only this process can answer a repeat.
    return KeyMint(secrets.token_bytes(32)) if file is None else KeyMint.from_file(file)
