"""Composition root of the runner: it has no database, serves only health, and has a session to every coordinator."""

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
from services.runner.app.worker import Worker
from services.runner.config import RunnerSettings
from services.runner.peers.coordinators import CODEC, CoordinatorSessions
from services.runner.store.outputs import DirectoryOutputs
from windlass.coordinator.v1.sessions_pb2_grpc import RunnerSessionsStub
from windlass.sdk import registry

log = logger(__name__)

VERSION: Final = version("windlass")
# The share of the drain's time in which going runs may finish. In the rest they are handed back and acknowledged.
FINISHING_SHARE: Final = 0.7
# Health under this name says whether new work can arrive and begin: a coordinator has answered lately, and hung
# functions do not hold every place.
SESSIONS: Final = "windlass.coordinator.v1.RunnerSessions"


def wire(settings: RunnerSettings) -> Callable[[Process], Awaitable[None]]:
    """What `Process.main` runs."""

    async def start(process: Process) -> None:
        setup_logging(service="runner", replica=settings.replica, level=settings.log_level)
        # The lines of modules are shown at our level, those of libraries from WARNING on.
        MODULE_LOG.setLevel(settings.log_level.upper())
        setup_tracing(
            service="runner", version=VERSION, instance=settings.name, endpoint=settings.otlp_endpoint
        )
        process.on_close("spans", flush_tracing)
        modules = load_modules(settings)

        key_file = settings.runner_key_file
        key = key_file.read_text(encoding="utf-8").strip() if key_file else None
        channels = ChannelPool(credential=None, bearer=key, tls=settings.tls)
        process.on_close("channels", channels.close)

        outputs = DirectoryOutputs(settings.output_store)
        await outputs.sweep()

        clock = SystemClock()
        sessions = CoordinatorSessions(clock)
        rendering = Rendering()
        process.on_close("rendering", lambda: asyncio.to_thread(rendering.close))
        worker = Worker(
            registry=registry,
            rendering=rendering,
            outputs=outputs,
            holder=sessions,
            clock=clock,
            concurrency=settings.runner_concurrency,
        )

        holder = SessionHolder(
            profile=profile(settings, modules),
            capacity=settings.runner_concurrency,
            timing=RUN.scaled(settings.lease_scale),
            codec=CODEC,
            open_stream=lambda address: RunnerSessionsStub(channels.get(address)).Session(),
            owner=sessions,
            forget=channels.forget,
        )
        sessions.join(holder, worker)
        process.on_close("sessions", holder.stop)

        await serve(process, settings, worker)

        process.loop("sessions", lambda: holder.run(AddressBook(settings.coordinators).changes()))
        process.loop("loop lag", LoopLag().run)
        process.loop("worker", worker.run)
        process.on_drain("work", lambda: drained(worker, holder, settings.drain_seconds))
        log.info("runner ready", runner=settings.name, modules=len(modules))

    return start


def load_modules(settings: RunnerSettings) -> list[str]:
    """Register the built-in modules and the user's; return all their names."""
    for module in built_in():
        registry.add(module)
    import_files(settings.module_files)
    return list(registry)


def profile(settings: RunnerSettings, modules: Sequence[str]) -> HolderProfile:
    return HolderProfile(
        settings.name,
        version=VERSION,
        labels=settings.labels,
        modules=modules,
        idempotent_modules=registry.idempotent,
    )


async def serve(process: Process, settings: RunnerSettings, worker: Worker) -> None:
    """Serve health, and metrics unless their address is empty."""

    async def can_work() -> bool:
        return worker.can_work()

    server = GrpcServer(
        settings.grpc_address,
        guard=Guard({}, keys=SystemKey(settings.system_key_hash_file)),
        tls=settings.tls,
        public=settings.public,
    )
    server.health.set(SESSIONS, False)
    await server.start()
    process.on_close("server", lambda: server.stop(1.0))
    process.loop("health", lambda: server.health.follow(can_work, services=(SESSIONS,), every_seconds=0.2))
    if settings.metrics_address:
        metrics = MetricsEndpoint(settings.metrics_address)
        await metrics.start()
        process.on_close("metrics", metrics.stop)


async def drained(worker: Worker, holder: SessionHolder, seconds: float) -> None:
    """Let going runs finish, hand back the rest, and return when everything is acknowledged."""
    worker.drain()
    try:
        async with asyncio.timeout(seconds * FINISHING_SHARE):
            await holder.drain()
    except TimeoutError:
        worker.hand_back_going("DRAINING")
        await holder.drain()
