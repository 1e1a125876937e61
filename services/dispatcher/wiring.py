"""The composition root of the dispatcher: the only file that names concrete classes. Read it from the top down."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import uvloop

from services.chassis.grpc.guard import Guard
from services.chassis.grpc.limits import INTERNAL
from services.chassis.grpc.server import GrpcServer
from services.chassis.identity.system_key import SystemKey
from services.chassis.lease.timing import EXECUTION
from services.chassis.postgres import migrations
from services.chassis.postgres.database import Database, PgConnection
from services.chassis.postgres.notifications import Notifications
from services.chassis.process.clock import Clock, SystemClock
from services.chassis.process.fresh_ids import fresh_uuid
from services.chassis.process.lifecycle import Loops, Steps
from services.chassis.process.retention import Retention
from services.chassis.process.service import run_service
from services.chassis.session.postgres import PostgresSessionStore
from services.chassis.session.registry import SessionRegistry
from services.dispatcher.app.admission_inbox import AdmissionInbox
from services.dispatcher.app.admission_loop import AdmissionLoop
from services.dispatcher.app.admission_metrics import AdmissionMetrics
from services.dispatcher.app.deliveries import Deliveries
from services.dispatcher.app.dispatched_marks import DispatchedMarks
from services.dispatcher.app.measures import Measures
from services.dispatcher.app.parent_notices import ParentNotices
from services.dispatcher.app.poll_loop import PollLoop
from services.dispatcher.app.replica_notices import CHANNEL, ReplicaNotices
from services.dispatcher.app.returns import Returns
from services.dispatcher.app.waking import Waking
from services.dispatcher.config import DispatcherSettings
from services.dispatcher.rpc.allowed_callers import RULES
from services.dispatcher.rpc.enqueue import EnqueueServicer
from services.dispatcher.rpc.queue import QueueServicer
from services.dispatcher.rpc.sessions import CODEC, CoordinatorSessionOwner, CoordinatorSessionsService
from services.dispatcher.rpc.translate import given_up_message, grant_of, without_input
from services.dispatcher.store.failed_rows import PostgresFailedRows
from services.dispatcher.store.housekeeping import PostgresHousekeeping
from services.dispatcher.store.leases import PostgresLeases
from services.dispatcher.store.mailbox import PostgresMailbox
from services.dispatcher.store.queue import SETTINGS, PostgresQueue
from services.dispatcher.store.reads import PostgresQueueReads
from windlass.dispatcher.v1 import queue_pb2_grpc, sessions_pb2_grpc

SERVICE: Final = "dispatcher"
MIGRATIONS: Final = Path(__file__).parent / "migrations"
# The poll behind every wake-up: the longest wait when every notification is lost. Multiplied by the lease scale.
POLL_SECONDS: Final = 2.0
# A committed grant without an acknowledgement is asked about after this time. Multiplied by the lease scale.
LOST_GRANT_SECONDS: Final = 1.0
# A message without an acknowledgement is sent again after this time. Multiplied by the lease scale.
REDELIVER_SECONDS: Final = 1.0


def main(settings: DispatcherSettings) -> int:
    # Items leave no cycles, so collections can be rare.
    return run_service(SERVICE, settings, DispatcherService, new_loop=uvloop.new_event_loop, collects_rarely=True)


class DispatcherService:
    """The parts of one dispatcher, joined. Nothing runs yet."""

    def __init__(self, settings: DispatcherSettings) -> None:
        self._settings = settings
        self.name = f"{SERVICE}-{settings.replica}"
        self._poll_seconds = POLL_SECONDS * settings.lease_scale
        self._connect()
        self._metrics = AdmissionMetrics()
        self._inbox = AdmissionInbox(self._clock)
        self._join_housekeeping()
        self._join_coordinators()
        self._join_admission()
        self._serve()

    def _connect(self) -> None:
        """Time and the database. A simulation has its own, here and in `_new_server`."""
        settings = self._settings
        scale, url = settings.lease_scale, settings.database_url
        self._clock: Clock = SystemClock()
        self._fresh_id = fresh_uuid
        self._database = Database(url, name=self.name, connections=settings.database_connections)
        self._connection = PgConnection(url, name=f"{self.name}-admission_loop", settings=SETTINGS)
        self._queue = PostgresQueue(self._connection)
        self._reads = PostgresQueueReads(self._database)
        self._failed_rows = PostgresFailedRows(self._database)
        self._leases = PostgresLeases(self._database, lease_scale=scale, without_input=without_input)
        self._sessions = PostgresSessionStore(
            self._database, "dispatcher.coordinator_sessions", EXECUTION.scaled(scale)
        )
        self._mailbox = PostgresMailbox(self._database, redeliver_seconds=REDELIVER_SECONDS * scale)
        self._housekeeping = PostgresHousekeeping(
            self._database,
            lost_grant_seconds=LOST_GRANT_SECONDS * scale,
            request_key_seconds=settings.request_key_seconds,
            dead_letter_seconds=settings.dead_letter_seconds,
        )

    def _join_housekeeping(self) -> None:
        """The loops that change leases outside of the batches, or read the queue from time to time."""
        self._returns = Returns(leases=self._leases, inbox=self._inbox, metrics=self._metrics, clock=self._clock)
        self._marks = DispatchedMarks(housekeeping=self._housekeeping, clock=self._clock)
        self._waking = Waking(
            housekeeping=self._housekeeping, inbox=self._inbox, clock=self._clock, poll_seconds=self._poll_seconds
        )
        self._measures = Measures(housekeeping=self._housekeeping, clock=self._clock)
        housekeeping = self._housekeeping
        self._retention = Retention(
            self._mailbox.sweep,
            housekeeping.forget_requests,
            housekeeping.forget_dead_letters,
            housekeeping.forget_requeues,
            clock=self._clock,
        )
        self._replica_notices = ReplicaNotices(
            housekeeping=self._housekeeping,
            replica=f"{self.name}-{os.getpid()}",
            heard=self._inbox.work_elsewhere,
            clock=self._clock,
        )
        self._notice_listener = Notifications(
            self._settings.database_url, [CHANNEL], self._replica_notices.on_notice, name=f"{self.name}-notices"
        )

    def _join_coordinators(self) -> None:
        """The coordinators' sessions, and the parts that send over them."""
        timing = EXECUTION.scaled(self._settings.lease_scale)
        self._session_owner = CoordinatorSessionOwner(
            inbox=self._inbox,
            returns=self._returns,
            marks=self._marks,
            leases=self._leases,
            metrics=self._metrics,
            clock=self._clock,
        )
        self._deliveries = Deliveries(
            mailbox=self._mailbox, inbox=self._inbox, post=self._session_owner.post, clock=self._clock
        )
        self._registry = SessionRegistry(
            store=self._sessions,
            timing=timing,
            server=self.name,
            codec=CODEC,
            owner=self._session_owner,
            clock=self._clock,
            fresh_id=self._fresh_id,
        )
        self._session_owner.deliveries, self._session_owner.registry = self._deliveries, self._registry

    def _join_admission(self) -> None:
        """The admission loop, and the poll that feeds it."""
        self._admission_loop = AdmissionLoop(
            inbox=self._inbox,
            store=self._queue,
            coordinators=self._registry,
            returns=self._returns,
            waking=self._waking,
            replica_notices=self._replica_notices,
            grant_of=grant_of,
            metrics=self._metrics,
            clock=self._clock,
            poll_seconds=self._poll_seconds,
        )
        notices = ParentNotices(
            housekeeping=self._housekeeping, deliver=self._deliveries.deliver, message_of=given_up_message
        )
        self._poll_loop = PollLoop(
            housekeeping=self._housekeeping,
            mailbox=self._mailbox,
            polled=self._inbox.polled,
            ended=self._returns.ended,
            ask_holder=self._session_owner.ask,
            post=self._session_owner.post,
            tell_parents=notices.run_once,
            clock=self._clock,
            every_seconds=self._poll_seconds,
        )

    def _new_server(self) -> GrpcServer:
        settings = self._settings
        return GrpcServer(
            settings.grpc_address,
            guard=Guard(RULES, keys=SystemKey(settings.system_key_hash_file), credential=settings.credential(SERVICE)),
            limits=INTERNAL,
            tls=settings.tls,
            public=settings.public,
        )

    def _serve(self) -> None:
        self.server = self._new_server()
        self._enqueues = EnqueueServicer(self._inbox)
        queue = QueueServicer(
            reads=self._reads,
            failed_rows=self._failed_rows,
            deliveries=self._deliveries,
            parked_rows=self._housekeeping,
            inbox=self._inbox,
        )
        queue_pb2_grpc.add_EnqueueServiceServicer_to_server(self._enqueues, self.server)
        queue_pb2_grpc.add_QueueServiceServicer_to_server(queue, self.server)
        sessions_pb2_grpc.add_CoordinatorSessionsServicer_to_server(
            CoordinatorSessionsService(self._registry), self.server
        )

    async def prepare(self) -> None:
        await migrations.check(self._settings.database_url, SERVICE, MIGRATIONS)

    def loops(self) -> Loops:
        return (
            ("admission loop", self._admission_loop.run),
            *self._returns.loops,
            *self._deliveries.loops,
            ("marks", self._marks.run),
            ("waking", self._waking.run),
            ("poll loop", self._poll_loop.run),
            ("replica notices", self._replica_notices.run),
            ("notice listener", self._notice_listener.run),
            ("beats", self._registry.run_beats),
            ("ticks", self._registry.run_ticks),
            ("sweeps", self._registry.run_sweeps),
            ("measures", self._measures.run),
            ("retention", self._retention.run),
            ("health", lambda: self.server.health.follow(self._database.probe)),
        )

    def drain_steps(self) -> Steps:
        """Send coordinators and api to other replicas, then commit and answer what has arrived."""
        return (
            ("health", self._stop_serving),
            ("sessions with coordinators", self._registry.stop),
            ("admissions", self._admission_loop.idle),
            ("returns", self._returns.idle),
        )

    async def _stop_serving(self) -> None:
        self.server.health.close()
        self._enqueues.drain()

    def close_steps(self) -> Steps:
        return (("connection of the admission loop", self._connection.close), ("database", self._database.close))
