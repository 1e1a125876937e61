"""The coordinator, put together: settings, connections, peers, use cases, servicers, loops, in this order.

The other services may start before it or after it. Without a dispatcher there is nothing to do; while the database or
api is away, granted executions wait; while no runner is attached, ready work waits.
"""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import Callable, Coroutine, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvloop

from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.client import ChannelPool
from services.chassis.grpc.guard import Guard
from services.chassis.grpc.server import GrpcServer
from services.chassis.identity.system_key import SystemKey
from services.chassis.lease.frames import Attach
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
from services.chassis.telemetry.metrics import serve_metrics
from services.chassis.telemetry.tracing import flush_tracing, setup_tracing
from services.coordinator.app.after_commit import AfterCommit
from services.coordinator.app.assigning import Assigner
from services.coordinator.app.commit_loop import CommitLoop
from services.coordinator.app.dead_runners import DeadRunners
from services.coordinator.app.journal_loader import JournalLoader
from services.coordinator.app.key_checks import check_keys
from services.coordinator.app.misrouted_reports import ReportForwarder
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.app.partitions import make_partitions
from services.coordinator.config import CoordinatorSettings
from services.coordinator.peers import dispatch as dispatch_hop
from services.coordinator.peers.catalog import KEY_SECONDS, ApiReplicas, CatalogDefinitions, CatalogKeys
from services.coordinator.peers.dispatch import SessionDispatch
from services.coordinator.peers.mailbox import DispatcherMailbox
from services.coordinator.rpc import runners as runner_hop
from services.coordinator.rpc.allowed_callers import RULES
from services.coordinator.rpc.reads import ReadServicer
from services.coordinator.rpc.run_messages import forwarded_command, run_grant
from services.coordinator.rpc.runners import RunnerSessionsService, SessionRunners
from services.coordinator.rpc.watch import WatchHub
from services.coordinator.rpc.watch_streams import WatchServicer
from services.coordinator.store import codec
from services.coordinator.store.journal import LOADING, PostgresJournal, fold_journal
from services.coordinator.store.partitions import make_ahead
from services.coordinator.store.reads import PostgresReads
from windlass.coordinator.v1.reads_pb2_grpc import add_ReadServiceServicer_to_server, add_WatchServiceServicer_to_server
from windlass.coordinator.v1.sessions_pb2_grpc import add_RunnerSessionsServicer_to_server
from windlass.dispatcher.v1.sessions_pb2_grpc import CoordinatorSessionsStub

log = logger(__name__)

SERVICE = "coordinator"
# Longer than a dispatcher needs to bring a message to its holder: it repeats what is unread for a second within half.
MAILBOX_SECONDS = 2.0
# Longer than any call lasts.
FORGET_SECONDS = 6.0
# One load reads many journals, and others wait for it. At most three loads of this length find the journal that is too
# large for it, so everything else goes on well within 15 s. The large one is then read alone, with more time.
LOAD_SECONDS = 2.0
HARD_LOAD_SECONDS = 30.0
MIGRATIONS = Path(__file__).parent / "migrations"


def main(settings: CoordinatorSettings) -> int:
    # Thousands of executions live for seconds and hold no cycles: a collection at every 700th object costs a tenth.
    gc.set_threshold(50_000, 20, 50)
    setup_logging(service=SERVICE, replica=settings.replica, level=settings.log_level)
    process = Process(SERVICE, drain_seconds=settings.drain_seconds)
    # A third less time per awaited socket, and every batch awaits several.
    return process.main(lambda process: wire(settings, process), new_loop=uvloop.new_event_loop)


async def wire(settings: CoordinatorSettings, process: Process) -> int:
    """Start everything. Returns the gRPC port that was bound."""
    setup_tracing(
        service=SERVICE,
        version=version("windlass"),
        instance=f"{SERVICE}-{settings.replica}",
        endpoint=settings.otlp_endpoint,
    )
    await migrations.check(settings.database_url, SERVICE, MIGRATIONS)
    service = CoordinatorService(settings)
    for name, run in service.loops():
        process.loop(name, run)
    process.on_drain("hand back all executions", service.hand_back)
    process.on_drain("close the sessions with dispatchers", service.holder.stop)
    process.on_drain("close the sessions with runners", service.registry.stop)
    process.on_close("spans", flush_tracing)
    process.on_close("connections", service.close)
    process.on_close("server", lambda: service.server.stop(0.5))
    await serve_metrics(process, settings.metrics_address)
    port = await service.server.start()
    log.info("serving", grpc_port=port, replica=settings.replica, lease_scale=settings.lease_scale)
    return port


class CoordinatorService:
    """The parts of one coordinator, joined; nothing runs yet."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._name = f"{SERVICE}-{settings.replica}"
        self._clock = SystemClock()
        self._run_timing = RUN.scaled(settings.lease_scale)
        self._connect()
        self._join_dispatchers()
        self._join_executions()
        self._join_runners()
        self._join_commits()
        self._serve()

    def _connect(self) -> None:
        settings, name = self._settings, self._name
        # One connection for appends, two for loads, one for beats, and a few for everything that is read.
        self._writer = PgConnection(settings.database_url, name=f"{name}-journal", settings=BY_INDEX)
        self._loader, self._patient_loader = (
            PgConnection(settings.database_url, name=f"{name}-{role}", statement_seconds=seconds, settings=LOADING)
            for role, seconds in (("loader", LOAD_SECONDS), ("patient-loader", HARD_LOAD_SECONDS))
        )
        self._beats = PgConnection(settings.database_url, name=f"{name}-sessions")
        self._database = Database(settings.database_url, name=name)
        self._journal = PostgresJournal(self._writer, self._loader, self._patient_loader)
        self._reads = PostgresReads(self._database)
        self._channels = ChannelPool(credential=settings.credential(SERVICE), tls=settings.tls)
        self._replicas = ApiReplicas(AddressBook(settings.apis), self._channels, self._forget)
        self._keys = CatalogKeys(self._replicas, self._clock)

    async def _forget(self, address: str) -> None:
        """Close the channel to a process that is gone, once a call that has just begun has ended."""
        await self._channels.forget(address, FORGET_SECONDS)

    def _join_dispatchers(self) -> None:
        self._dispatch = SessionDispatch(self._name, forwarded_command)
        self.holder = self._dispatch.holder = SessionHolder(
            attach=Attach(self._name, capacity=self._settings.executions_max, version=version("windlass")),
            timing=EXECUTION.scaled(self._settings.lease_scale),
            codec=dispatch_hop.CODEC,
            open_stream=lambda address: CoordinatorSessionsStub(self._channels.get(address)).Session(),
            owner=self._dispatch,
            forget=self._forget,
        )

    def _join_executions(self) -> None:
        """The executions that are owned here, and the parts that bring them what they need."""
        definitions = CatalogDefinitions(self._replicas)
        mailbox = DispatcherMailbox(AddressBook(self._settings.dispatchers), self._channels)
        self._misrouted_reports = ReportForwarder(self._reads.standings, mailbox.deliver)
        self._executions = self._dispatch.executions = OwnedExecutions(
            clock=self._clock,
            definitions=definitions,
            dispatch=self._dispatch,
            forward=self._misrouted_reports.add,
            mailbox_seconds=MAILBOX_SECONDS * self._settings.lease_scale,
        )
        self._journal_loader = JournalLoader(
            executions=self._executions,
            journal=self._journal,
            definitions=definitions,
            fold=fold_journal,
            granted_again=self._run_timing.granted_again,
            holder=self._name,
        )

    def _join_runners(self) -> None:
        self._runners = SessionRunners(self._executions, DeadRunners(self._executions, self._run_timing.granted_again))
        self.registry = self._runners.registry = SessionRegistry(
            store=PostgresSessionStore(self._beats, "coordinator.runner_sessions", self._run_timing),
            timing=self._run_timing,
            server=self._name,
            codec=runner_hop.CODEC,
            owner=self._runners,
        )

    def _join_commits(self) -> None:
        self._reader = ReadServicer(self._reads, self._runners.modules_for)
        self._hub = self._dispatch.watchers = WatchHub(self._reads, self._reader, owned=self._executions.by_id.keys)
        after_commit = AfterCommit(
            executions=self._executions,
            runners=self.registry,
            run_grant=run_grant,
            dispatch=self._dispatch,
            watchers=self._hub,
            clock=self._clock,
        )
        self._commit_loop = CommitLoop(
            executions=self._executions,
            assigner=Assigner(self.registry),
            after_commit=after_commit,
            journal=self._journal,
            dispatch=self._dispatch,
            codec=codec,
            clock=self._clock,
        )

    def _serve(self) -> None:
        settings = self._settings
        self.server = GrpcServer(
            settings.grpc_address,
            guard=Guard(
                RULES,
                keys=SystemKey(settings.system_key_hash_file, others=self._keys),
                credential=settings.credential(SERVICE),
            ),
            tls=settings.tls,
            public=settings.public,
        )
        add_RunnerSessionsServicer_to_server(RunnerSessionsService(self.registry), self.server)
        add_ReadServiceServicer_to_server(self._reader, self.server)
        add_WatchServiceServicer_to_server(WatchServicer(self._hub), self.server)

    def loops(self) -> Sequence[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        """By name. A loop that dies takes the process with it."""
        settings, scale = self._settings, self._settings.lease_scale
        return (
            ("commits", self._commit_loop.run),
            ("journal loader", self._journal_loader.run),
            ("timers", self._executions.timers.run),
            ("misrouted reports", self._misrouted_reports.run),
            ("watch catch-up", self._hub.run_catching_up),
            ("watch poll", lambda: self._hub.run_polling(scale)),
            ("beats", self.registry.run_beats),
            ("ticks", self.registry.run_ticks),
            ("sweeps", self.registry.run_sweeps),
            ("keys", lambda: check_keys(self._keys.confirm, self.registry, KEY_SECONDS * scale)),
            ("sessions", lambda: self.holder.run(AddressBook(settings.dispatchers).changes())),
            ("api addresses", self._replicas.run),
            ("partitions", lambda: make_partitions(functools.partial(make_ahead, self._database))),
            ("health", lambda: self.server.health.follow(self._database.probe)),
        )

    async def hand_back(self) -> None:
        """Returns when the dispatchers know. The sessions drain first, or what goes back would come again at once."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.holder.drain())
            group.create_task(self._commit_loop.hand_back_all())

    async def close(self) -> None:
        await self._channels.close()
        for each in (self._beats, self._loader, self._patient_loader, self._writer, self._database):
            await each.close()
