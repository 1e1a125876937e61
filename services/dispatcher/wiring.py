"""The composition root: what there is, who knows whom, and in which order it starts and ends."""

from __future__ import annotations

import gc
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from services.chassis import migrations
from services.chassis.clock import SystemClock
from services.chassis.database import Database, Lane
from services.chassis.guard import Guard
from services.chassis.lease.timing import EXECUTION
from services.chassis.lifecycle import Process
from services.chassis.logs import setup_logging
from services.chassis.metrics import LoopLag, MetricsEndpoint
from services.chassis.notifications import Notifications
from services.chassis.server import INTERNAL, GrpcServer
from services.chassis.session.postgres import PostgresSessionStore
from services.chassis.session.registry import SessionRegistry
from services.chassis.system_key import SystemKey
from services.chassis.telemetry import flush_tracing, setup_tracing
from services.dispatcher.config import (
    ASTRAY_SECONDS,
    POLL_SECONDS,
    REDELIVER_SECONDS,
    SERVICE,
    VERSION,
    Settings,
)
from services.dispatcher.core.items import Place
from services.dispatcher.core.lanes import Lanes
from services.dispatcher.handler.deliveries import Deliveries
from services.dispatcher.handler.ports import Holder
from services.dispatcher.handler.returns import Returns
from services.dispatcher.handler.tally import Tally
from services.dispatcher.handler.turns import Dispatcher
from services.dispatcher.loops.marks import Marks
from services.dispatcher.loops.measures import Measures
from services.dispatcher.loops.neighbours import CHANNEL, Neighbours
from services.dispatcher.loops.retention import Retention
from services.dispatcher.loops.rounds import Rounds
from services.dispatcher.loops.waking import Waking
from services.dispatcher.rpc.enqueue import EnqueueServicer
from services.dispatcher.rpc.queue import QueueServicer
from services.dispatcher.rpc.rules import RULES
from services.dispatcher.rpc.sessions import CODEC, Coordinators, CoordinatorSessionsServicer
from services.dispatcher.store.duties import PostgresDuties
from services.dispatcher.store.leases import PostgresLeases
from services.dispatcher.store.mailbox import PostgresMailbox
from services.dispatcher.store.queue import SETTINGS, PostgresQueue
from services.dispatcher.store.reads import PostgresReads
from services.dispatcher.store.words import PostgresWords
from windlass.dispatcher.v1 import queue_pb2_grpc, sessions_pb2_grpc

MIGRATIONS = Path(__file__).parent / "migrations"


class Service:
    """The parts of one dispatcher, joined; nothing runs yet."""

    def __init__(self, settings: Settings) -> None:
        scale, clock = settings.lease_scale, SystemClock()
        timing = EXECUTION.scaled(scale)
        name = f"{SERVICE}-{settings.replica}"
        self.database = Database(settings.database_url, name=name, connections=settings.database_connections)
        self.lane = Lane(settings.database_url, name=f"{name}-turns", settings=SETTINGS)
        leases = PostgresLeases(self.database, lease_scale=scale)
        duties = PostgresDuties(self.database, astray_seconds=ASTRAY_SECONDS * scale)
        mailbox = PostgresMailbox(self.database, redeliver_seconds=REDELIVER_SECONDS * scale)
        self.neighbours = Neighbours(
            words=PostgresWords(self.database),
            replica=f"{name}-{os.getpid()}",
            heard=self._heard,
            clock=clock,
        )
        tally = Tally(self.neighbours.waits_in)
        self.lanes = Lanes()
        self.turns = Dispatcher(
            queue=PostgresQueue(self.lane),
            late=leases,
            holders=self._holders,
            give_up=self._give_up,
            due=self._due,
            demand=self._demand,
            lanes=self.lanes,
            tally=tally,
            clock=clock,
            poll_seconds=POLL_SECONDS * scale,
        )
        self.returns = Returns(leases=leases, turns=self.turns, tally=tally, clock=clock)
        self.deliveries = Deliveries(
            mailbox=mailbox,
            turns=self.turns,
            post=self._post,
            clock=clock,
        )
        self.marks = Marks(duties=duties, clock=clock)
        self.waking = Waking(duties=duties, turns=self.turns, clock=clock, poll_seconds=POLL_SECONDS * scale)
        self.coordinators = Coordinators(
            turns=self.turns,
            returns=self.returns,
            deliveries=self.deliveries,
            marks=self.marks,
            leases=leases,
            tally=tally,
            registry=lambda: self.registry,
            clock=clock,
        )
        self.registry = SessionRegistry(
            store=PostgresSessionStore(self.database, "dispatcher.coordinator_sessions", timing),
            timing=timing,
            server=name,
            codec=CODEC,
            owner=self.coordinators,
        )
        self._watch_over(settings, leases, duties, mailbox)
        self.server = GrpcServer(
            settings.grpc_address,
            guard=Guard(
                RULES,
                keys=SystemKey(settings.system_key_hash_file),
                credential=settings.credential(SERVICE),
            ),
            limits=INTERNAL,
            tls=settings.tls,
            public=settings.public,
        )
        self._serve(PostgresReads(self.database))

    def _watch_over(
        self, settings: Settings, leases: PostgresLeases, duties: PostgresDuties, mailbox: PostgresMailbox
    ) -> None:
        """What looks again from time to time, and what tells others."""
        clock, scale, name = SystemClock(), settings.lease_scale, f"{SERVICE}-{settings.replica}"
        self.rounds = Rounds(
            duties=duties,
            leases=leases,
            mailbox=mailbox,
            polled=self.turns.polled,
            ended=self.returns.ended,
            ask_holder=self.coordinators.ask,
            post=self.coordinators.post,
            clock=clock,
            every_seconds=POLL_SECONDS * scale,
        )
        self.measures = Measures(duties=duties, clock=clock)
        self.retention = Retention(
            duties=duties, mailbox=mailbox, kept_seconds=settings.request_key_seconds, clock=clock
        )
        self.words = Notifications(
            settings.database_url, [CHANNEL], self.neighbours.on_word, name=f"{name}-words"
        )

    # What is told in a circle finds its end only when all parts are there.

    def _heard(self, workspace: str) -> None:
        self.turns.work_elsewhere(workspace)

    def _holders(self) -> Sequence[Holder]:
        return self.coordinators.with_credit()

    def _give_up(self, places: Sequence[Place]) -> None:
        self.returns.hand_back([(each.execution_id, each.epoch) for each in places])

    def _due(self, time: datetime) -> None:
        self.waking.due(time)

    def _demand(self, amount: int) -> None:
        self.registry.set_demand(amount)

    def _post(self, instance_id: str, bodies: Sequence[bytes]) -> None:
        self.coordinators.post(instance_id, bodies)

    def _serve(self, reads: PostgresReads) -> None:
        self.enqueues = EnqueueServicer(self.turns)
        queue_pb2_grpc.add_EnqueueServiceServicer_to_server(self.enqueues, self.server)
        queue_pb2_grpc.add_QueueServiceServicer_to_server(
            QueueServicer(
                reads=reads,
                deliveries=self.deliveries,
                limits_changed=self.turns.limits_changed,
            ),
            self.server,
        )
        sessions_pb2_grpc.add_CoordinatorSessionsServicer_to_server(
            CoordinatorSessionsServicer(self.registry), self.server
        )

    def loops(self) -> Sequence[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        """By name. One that dies takes the process with it."""
        return (
            ("turns", self.turns.run),
            ("returns", self.returns.run),
            ("deliveries", self.deliveries.run),
            ("forgetting", self.deliveries.run_forgetting),
            ("marks", self.marks.run),
            ("waking", self.waking.run),
            ("rounds", self.rounds.run),
            ("neighbours", self.neighbours.run),
            ("words", self.words.run),
            ("beats", self.registry.run_beats),
            ("reaper", self.registry.run_reaper),
            ("measures", self.measures.run),
            ("retention", self.retention.run),
            ("loop lag", LoopLag().run),
            ("health", lambda: self.server.health.follow(self.database.probe)),
        )

    async def drain(self) -> None:
        """Coordinators and api are sent to other replicas; what was brought so far is committed and answered."""
        self.server.health.close()
        self.enqueues.drain()
        await self.registry.stop()
        await self.turns.idle()
        await self.returns.idle()

    async def close(self) -> None:
        await self.server.stop(0.5)
        await self.lane.close()
        await self.database.close()


def wiring(settings: Settings) -> Callable[[Process], Awaitable[None]]:
    """What `Process.main` runs."""

    async def wire(process: Process) -> None:
        setup_logging(service=SERVICE, replica=settings.replica, level=settings.log_level)
        setup_tracing(
            service=SERVICE,
            version=VERSION,
            instance=f"{SERVICE}-{settings.replica}",
            endpoint=settings.otlp_endpoint,
        )
        process.on_close("spans", flush_tracing)
        await migrations.check(settings.database_url, SERVICE, MIGRATIONS)
        service = Service(settings)
        process.on_close("service", service.close)
        for name, run in service.loops():
            process.loop(name, run)
        if settings.metrics_address:
            metrics = MetricsEndpoint(settings.metrics_address)
            await metrics.start()
            process.on_close("metrics", metrics.stop)
        # What stands now stays; items leave no cycles behind, so the collector need not look often.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        await service.server.start()
        process.on_drain("service", service.drain)

    return wire
