"""Composition root of the runner: no database, no server but health; sessions to every coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Final

from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.client import ChannelPool
from services.chassis.grpc.guard import Guard
from services.chassis.grpc.server import GrpcServer
from services.chassis.identity.system_key import SystemKey
from services.chassis.lease.profile import HolderProfile
from services.chassis.lease.timing import RUN
from services.chassis.process.clock import SystemClock
from services.chassis.process.lifecycle import Process
from services.chassis.session.holder import SessionHolder
from services.chassis.telemetry.logs import logger, setup_logging
from services.chassis.telemetry.metrics import LoopLag, MetricsEndpoint
from services.chassis.telemetry.tracing import flush_tracing, setup_tracing
from services.runner.app.attempt import MODULE_LOG
from services.runner.app.modules import built_in
from services.runner.app.modules.user import import_files
from services.runner.app.rendering import Rendering
from services.runner.app.tender import WorkerTender
from services.runner.app.worker import Worker
from services.runner.config import RunnerSettings
from services.runner.peers.coordinators import CODEC, CoordinatorSessions
from services.runner.store.outputs import DirectoryOutputs
from windlass.coordinator.v1.sessions_pb2_grpc import RunnerSessionsStub
from windlass.sdk import registry

log = logger(__name__)

# Of the time for draining: what is going may finish in it; in the rest it is handed back, and that acknowledged.
FINISHING_SHARE: Final = 0.7
# What its health speaks of: whether new work can come and be begun. That takes a coordinator that has answered lately,
# and a place that no hung function holds.
SESSIONS: Final = "windlass.coordinator.v1.RunnerSessions"


def wire(settings: RunnerSettings) -> Callable[[Process], Awaitable[None]]:
    """How this process is put together."""

    async def start(process: Process) -> None:
        release = version("windlass")
        setup_logging(service="runner", replica=settings.replica, level=settings.log_level)
        # What modules say is ours to show; libraries are heard from WARNING on.
        MODULE_LOG.setLevel(settings.log_level.upper())
        setup_tracing(
            service="runner",
            version=release,
            instance=settings.name,
            endpoint=settings.otlp_endpoint,
        )
        for module in built_in():
            registry.add(module)
        modules = import_files(settings.module_files) or list(registry)

        key = (
            settings.runner_key_file.read_text(encoding="utf-8").strip() if settings.runner_key_file else None
        )
        channels = ChannelPool(credential=None, bearer=key, tls=settings.tls)
        clock = SystemClock()
        sessions = CoordinatorSessions(clock)
        holder = SessionHolder(
            profile=profile(settings, release, modules),
            capacity=settings.runner_concurrency,
            timing=RUN.scaled(settings.lease_scale),
            codec=CODEC,
            open_stream=lambda address: RunnerSessionsStub(channels.get(address)).Session(),
            owner=sessions,
            forget=channels.forget,
        )
        outputs = DirectoryOutputs(settings.output_store)
        await outputs.sweep()
        rendering = Rendering()
        worker = Worker(
            registry=registry,
            rendering=rendering,
            outputs=outputs,
            holder=sessions,
            clock=clock,
            concurrency=settings.runner_concurrency,
        )
        sessions.join(holder, worker)

        server = health_server(settings)
        server.health.set(SESSIONS, False)
        await server.start()
        await serve_metrics(process, settings.metrics_address)
        process.loop(
            "health", lambda: server.health.follow(can_work, services=(SESSIONS,), every_seconds=0.2)
        )
        process.loop("sessions", lambda: holder.run(AddressBook(settings.coordinators).changes()))
        process.loop("loop lag", LoopLag().run)
        process.loop("tender", WorkerTender(worker, clock).run)

        async def can_work() -> bool:
            return worker.can_work()

        process.on_drain("work", lambda: drained(worker, holder, settings.drain_seconds))
        process.on_close("rendering", lambda: asyncio.to_thread(rendering.close))
        process.on_close("sessions", holder.stop)
        process.on_close("server", lambda: server.stop(1.0))
        process.on_close("channels", channels.close)
        process.on_close("spans", flush_tracing)
        log.info("runner ready", runner=settings.name, modules=len(modules))

    return start


def profile(settings: RunnerSettings, release: str, modules: Sequence[str]) -> HolderProfile:
    return HolderProfile(
        settings.name,
        version=release,
        labels=settings.labels,
        modules=modules,
        idempotent_modules=registry.idempotent,
    )


def health_server(settings: RunnerSettings) -> GrpcServer:
    return GrpcServer(
        settings.grpc_address,
        guard=Guard({}, keys=SystemKey(settings.system_key_hash_file)),
        tls=settings.tls,
        public=settings.public,
    )


async def serve_metrics(process: Process, address: str) -> None:
    """At this address; "" is nowhere."""
    if address:
        metrics = MetricsEndpoint(address)
        await metrics.start()
        process.on_close("metrics", metrics.stop)


async def drained(worker: Worker, holder: SessionHolder, seconds: float) -> None:
    """Let what is going finish, then hand it back; return when all of it is acknowledged."""
    worker.drain()
    try:
        async with asyncio.timeout(seconds * FINISHING_SHARE):
            await holder.drain()
    except TimeoutError:
        worker.hand_back_going("DRAINING")
        await holder.drain()
