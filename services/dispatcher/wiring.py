"""The composition root of the dispatcher: the only file that names concrete classes. Read it from the top down."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import uvloop

from services.chassis.grpc.guard import Guard
from services.chassis.grpc.server import INTERNAL, GrpcServer
from services.chassis.identity.system_key import SystemKey
from services.chassis.lease.timing import EXECUTION
from services.chassis.postgres import migrations
from services.chassis.postgres.database import Database, PgConnection
from services.chassis.postgres.notifications import Notifications
from services.chassis.process.clock import SystemClock
from services.chassis.process.lifecycle import Process
from services.chassis.session.postgres import PostgresSessionStore
from services.chassis.session.registry import SessionRegistry
from services.chassis.telemetry.logs import setup_logging
from services.chassis.telemetry.metrics import serve_metrics
from services.chassis.telemetry.tracing import flush_tracing, setup_tracing
from services.dispatcher.app.admission_inbox import AdmissionInbox
from services.dispatcher.app.admission_loop import AdmissionLoop
from services.dispatcher.app.admission_metrics import AdmissionMetrics
from services.dispatcher.app.backlog import Loop
from services.dispatcher.app.deliveries import Deliveries
from services.dispatcher.app.dispatched_marks import DispatchedMarks
from services.dispatcher.app.measures import Measures
from services.dispatcher.app.poll_loop import PollLoop
from services.dispatcher.app.replica_notices import CHANNEL, ReplicaNotices
from services.dispatcher.app.retention import Retention
from services.dispatcher.app.returns import Returns
from services.dispatcher.app.waking import Waking
from services.dispatcher.config import LOST_GRANT_SECONDS, POLL_SECONDS, REDELIVER_SECONDS, SERVICE, DispatcherSettings
from services.dispatcher.rpc.allowed_callers import RULES
from services.dispatcher.rpc.enqueue import EnqueueServicer
from services.dispatcher.rpc.queue import QueueServicer
from services.dispatcher.rpc.sessions import CODEC, CoordinatorSessionOwner, CoordinatorSessionsService
from services.dispatcher.rpc.translate import grant_of
from services.dispatcher.store.housekeeping import PostgresHousekeeping
from services.dispatcher.store.leases import PostgresLeases
from services.dispatcher.store.mailbox import PostgresMailbox
from services.dispatcher.store.queue import SETTINGS, PostgresQueue
from services.dispatcher.store.reads import PostgresQueueReads
from windlass.dispatcher.v1.queue_pb2_grpc import (
    add_EnqueueServiceServicer_to_server,
    add_QueueServiceServicer_to_server,
)
from windlass.dispatcher.v1.sessions_pb2_grpc import add_CoordinatorSessionsServicer_to_server

MIGRATIONS = Path(__file__).parent / "migrations"


def main(settings: DispatcherSettings) -> int:
    setup_logging(service=SERVICE, replica=settings.replica, level=settings.log_level)
    setup_tracing(
        service=SERVICE,
        version=version("windlass"),
        instance=f"{SERVICE}-{settings.replica}",
        endpoint=settings.otlp_endpoint,
    )

    process = Process(SERVICE, drain_seconds=settings.drain_seconds)
    return process.main(lambda process: wire(settings, process), new_loop=uvloop.new_event_loop)


async def wire(settings: DispatcherSettings, process: Process) -> None:
    process.on_close("spans", flush_tracing)
    await migrations.check(settings.database_url, SERVICE, MIGRATIONS)
    service = DispatcherService(settings)
    process.on_close("service", service.close)
    for name, run in service.loops():
        process.loop(name, run)
    await serve_metrics(process, settings.metrics_address)
    # The objects made so far live as long as the process, and items leave no cycles: collections can be rare.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    await service.server.start()
    process.on_drain("service", service.drain)


class DispatcherService:
    """The parts of one dispatcher, joined. Nothing runs yet."""

    def __init__(self, settings: DispatcherSettings) -> None:
        self.name = f"{SERVICE}-{settings.replica}"
        self.poll_seconds = POLL_SECONDS * settings.lease_scale
        self.clock = SystemClock()
        self.metrics = AdmissionMetrics()
        self.inbox = AdmissionInbox(self.clock)
        self._open_database(settings)
        self._look_after(settings)
        self._hold_sessions(settings)
        self._admit()
        self._serve(settings)

    def _open_database(self, settings: DispatcherSettings) -> None:
        scale, url = settings.lease_scale, settings.database_url
        self.database = Database(url, name=self.name, connections=settings.database_connections)
        self.connection = PgConnection(url, name=f"{self.name}-admission_loop", settings=SETTINGS)
        self.leases = PostgresLeases(self.database, lease_scale=scale)
        self.mailbox = PostgresMailbox(self.database, redeliver_seconds=REDELIVER_SECONDS * scale)
        self.housekeeping = PostgresHousekeeping(
            self.database,
            lost_grant_seconds=LOST_GRANT_SECONDS * scale,
            request_key_seconds=settings.request_key_seconds,
        )

    def _look_after(self, settings: DispatcherSettings) -> None:
        """The loops that change leases outside of the batches, or read the queue from time to time."""
        self.returns = Returns(leases=self.leases, inbox=self.inbox, metrics=self.metrics, clock=self.clock)
        self.marks = DispatchedMarks(housekeeping=self.housekeeping, clock=self.clock)
        self.waking = Waking(
            housekeeping=self.housekeeping, inbox=self.inbox, clock=self.clock, poll_seconds=self.poll_seconds
        )
        self.measures = Measures(housekeeping=self.housekeeping, clock=self.clock)
        self.retention = Retention(housekeeping=self.housekeeping, mailbox=self.mailbox, clock=self.clock)
        self.replica_notices = ReplicaNotices(
            housekeeping=self.housekeeping,
            replica=f"{self.name}-{os.getpid()}",
            heard=self.inbox.work_elsewhere,
            clock=self.clock,
        )
        self.notice_listener = Notifications(
            settings.database_url, [CHANNEL], self.replica_notices.on_notice, name=f"{self.name}-notices"
        )

    def _hold_sessions(self, settings: DispatcherSettings) -> None:
        """The coordinators' sessions, and the parts that send over them."""
        timing = EXECUTION.scaled(settings.lease_scale)
        self.session_owner = CoordinatorSessionOwner(
            inbox=self.inbox,
            returns=self.returns,
            marks=self.marks,
            leases=self.leases,
            metrics=self.metrics,
            clock=self.clock,
        )
        self.deliveries = Deliveries(
            mailbox=self.mailbox, inbox=self.inbox, post=self.session_owner.post, clock=self.clock
        )
        self.registry = SessionRegistry(
            store=PostgresSessionStore(self.database, "dispatcher.coordinator_sessions", timing),
            timing=timing,
            server=self.name,
            codec=CODEC,
            owner=self.session_owner,
        )
        self.session_owner.deliveries, self.session_owner.registry = self.deliveries, self.registry

    def _admit(self) -> None:
        """The admission loop, and the poll that feeds it."""
        self.admission_loop = AdmissionLoop(
            inbox=self.inbox,
            store=PostgresQueue(self.connection),
            coordinators=self.registry,
            returns=self.returns,
            waking=self.waking,
            replica_notices=self.replica_notices,
            grant_of=grant_of,
            metrics=self.metrics,
            clock=self.clock,
            poll_seconds=self.poll_seconds,
        )
        self.poll_loop = PollLoop(
            housekeeping=self.housekeeping,
            mailbox=self.mailbox,
            polled=self.inbox.polled,
            ended=self.returns.ended,
            ask_holder=self.session_owner.ask,
            post=self.session_owner.post,
            clock=self.clock,
            every_seconds=self.poll_seconds,
        )

    def _serve(self, settings: DispatcherSettings) -> None:
        self.server = GrpcServer(
            settings.grpc_address,
            guard=Guard(RULES, keys=SystemKey(settings.system_key_hash_file), credential=settings.credential(SERVICE)),
            limits=INTERNAL,
            tls=settings.tls,
            public=settings.public,
        )
        self.enqueues = EnqueueServicer(self.inbox)
        queue = QueueServicer(reads=PostgresQueueReads(self.database), deliveries=self.deliveries, inbox=self.inbox)
        add_EnqueueServiceServicer_to_server(self.enqueues, self.server)
        add_QueueServiceServicer_to_server(queue, self.server)
        add_CoordinatorSessionsServicer_to_server(CoordinatorSessionsService(self.registry), self.server)

    def loops(self) -> Sequence[Loop]:
        """The background loops by name. A loop that dies takes the process with it."""
        return (
            ("admission_loop", self.admission_loop.run),
            *self.returns.loops,
            *self.deliveries.loops,
            ("marks", self.marks.run),
            ("waking", self.waking.run),
            ("poll loop", self.poll_loop.run),
            ("replica_notices", self.replica_notices.run),
            ("notice listener", self.notice_listener.run),
            ("beats", self.registry.run_beats),
            ("ticks", self.registry.run_ticks),
            ("sweeps", self.registry.run_sweeps),
            ("measures", self.measures.run),
            ("retention", self.retention.run),
            ("health", lambda: self.server.health.follow(self.database.probe)),
        )

    async def drain(self) -> None:
        """Send coordinators and api to other replicas, then commit and answer what has arrived."""
        self.server.health.close()
        self.enqueues.drain()
        await self.registry.stop()
        await self.admission_loop.idle()
        await self.returns.idle()

    async def close(self) -> None:
        await self.server.stop(0.5)
        await self.connection.close()
        await self.database.close()
