"""Composition root of the runner: it has no database, serves only health, and has a session to every coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from importlib.metadata import version
from typing import Any, Final

from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.client import ChannelPool
from services.chassis.grpc.guard import Guard
from services.chassis.grpc.server import GrpcServer
from services.chassis.identity.system_key import SystemKey
from services.chassis.lease.frames import Attach
from services.chassis.lease.timing import RUN
from services.chassis.process.clock import SystemClock
from services.chassis.process.lifecycle import Process
from services.chassis.session.holder import SessionHolder
from services.chassis.telemetry.logs import logger, setup_logging
from services.chassis.telemetry.metrics import serve_metrics
from services.chassis.telemetry.tracing import flush_tracing, setup_tracing
from services.runner.app.attempt import MODULE_LOG
from services.runner.app.modules import built_in, import_files
from services.runner.app.rendering import Rendering
from services.runner.app.worker import Worker
from services.runner.config import RunnerSettings
from services.runner.peers.coordinators import CODEC, CoordinatorSessions
from services.runner.store.outputs import DirectoryOutputs
from windlass.coordinator.v1.sessions_pb2_grpc import RunnerSessionsStub
from windlass.sdk import registry

log = logger(__name__)

SERVICE: Final = "runner"
VERSION: Final = version("windlass")
# The share of the drain's time in which going runs may finish. In the rest they are handed back and acknowledged.
FINISHING_SHARE: Final = 0.7
# Health under this name says whether new work can arrive and begin: a coordinator has answered lately, and hung
# functions do not hold every place.
SESSIONS: Final = "windlass.coordinator.v1.RunnerSessions"


def main(settings: RunnerSettings) -> int:
    setup_logging(service=SERVICE, replica=settings.replica, level=settings.log_level)
    # The lines of modules are shown at our level, those of libraries from WARNING on.
    MODULE_LOG.setLevel(settings.log_level.upper())
    return Process(SERVICE, drain_seconds=settings.drain_seconds).main(lambda process: wire(settings, process))


async def wire(settings: RunnerSettings, process: Process) -> None:
    setup_tracing(service=SERVICE, version=VERSION, instance=settings.name, endpoint=settings.otlp_endpoint)
    process.on_close("spans", flush_tracing)
    modules = load_modules(settings)
    service = RunnerService(settings, modules)
    process.on_close("service", service.close)
    await service.outputs.sweep()
    await serve_metrics(process, settings.metrics_address)
    await service.server.start()
    for name, run in service.loops():
        process.loop(name, run)
    process.on_drain("work", service.drain)
    log.info("runner ready", runner=settings.name, modules=len(modules))


def load_modules(settings: RunnerSettings) -> list[str]:
    """Register the built-in modules and the user's; return all their names."""
    for module in built_in():
        registry.add(module)
    import_files(settings.module_files)
    return list(registry)


class RunnerService:
    """The parts of one runner, joined. Nothing runs yet."""

    def __init__(self, settings: RunnerSettings, modules: Sequence[str]) -> None:
        self._settings = settings
        self.outputs = DirectoryOutputs(settings.output_store)
        clock = SystemClock()
        self._sessions = CoordinatorSessions(clock)
        self._rendering = Rendering()
        concurrency = settings.runner_concurrency
        self._worker = Worker(registry, self._rendering, self.outputs, self._sessions, clock, concurrency)
        self._join_coordinators(modules)
        self._serve()

    def _join_coordinators(self, modules: Sequence[str]) -> None:
        settings = self._settings
        key = settings.runner_key_file.read_text(encoding="utf-8").strip() if settings.runner_key_file else None
        self._channels = channels = ChannelPool(credential=None, bearer=key, tls=settings.tls)
        attach = Attach(
            holder=settings.name,
            capacity=settings.runner_concurrency,
            version=VERSION,
            labels=settings.labels,
            modules=modules,
            idempotent_modules=registry.idempotent,
        )
        self._holder = SessionHolder(
            attach=attach,
            timing=RUN.scaled(settings.lease_scale),
            codec=CODEC,
            open_stream=lambda address: RunnerSessionsStub(channels.get(address)).Session(),
            owner=self._sessions,
            forget=channels.forget,
        )
        self._sessions.join(self._holder, self._worker)

    def _serve(self) -> None:
        settings = self._settings
        self.server = GrpcServer(
            settings.grpc_address,
            guard=Guard({}, keys=SystemKey(settings.system_key_hash_file)),
            tls=settings.tls,
            public=settings.public,
        )
        self.server.health.set(SESSIONS, False)

    def loops(self) -> Sequence[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        """Each loop with its name. One that dies takes the process with it."""
        return (
            ("sessions", lambda: self._holder.run(AddressBook(self._settings.coordinators).changes())),
            ("worker", self._worker.run),
            ("health", lambda: self.server.health.follow(self._can_work, services=(SESSIONS,), every_seconds=0.2)),
        )

    async def _can_work(self) -> bool:
        return self._worker.can_work()

    async def drain(self) -> None:
        """Let going runs finish, hand back the rest, and return when everything is acknowledged."""
        self._worker.drain()
        try:
            async with asyncio.timeout(self._settings.drain_seconds * FINISHING_SHARE):
                await self._holder.drain()
        except TimeoutError:
            self._worker.hand_back_going()
            await self._holder.drain()

    async def close(self) -> None:
        await self.server.stop(1.0)
        await self._holder.stop()
        await asyncio.to_thread(self._rendering.close)
        await self._channels.close()
