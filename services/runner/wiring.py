"""The composition root of a runner: the only file that names concrete classes. Read it from the top down.

A runner has no database, serves only health, and has a session with every coordinator.
"""

from __future__ import annotations

import asyncio
from typing import Final

from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.client import ChannelPool
from services.chassis.grpc.guard import Guard
from services.chassis.grpc.server import GrpcServer
from services.chassis.identity.system_key import SystemKey
from services.chassis.lease.frames import Attach
from services.chassis.lease.timing import RUN
from services.chassis.process.clock import Clock, SystemClock
from services.chassis.process.fresh_ids import fresh_uuid
from services.chassis.process.lifecycle import Loops, Steps
from services.chassis.process.memory import keep_freed_memory
from services.chassis.process.service import VERSION, run_service
from services.chassis.session.holder import SessionHolder
from services.chassis.telemetry.logs import logger
from services.rendering import Rendering
from services.runner.app.attempt import MODULE_LOG
from services.runner.app.module_loop import ModuleLoop
from services.runner.app.modules import built_in, import_files
from services.runner.app.worker import STALLED_TERMS_MAX, Worker
from services.runner.config import RunnerSettings
from services.runner.core.egress import Egress
from services.runner.peers.coordinators import CODEC, CoordinatorSessions
from services.runner.peers.outputs import CoordinatorOutputs
from services.runner.store.outputs import DirectoryOutputs
from windlass.coordinator.v1.sessions_pb2_grpc import RunnerSessionsStub
from windlass.sdk import registry

log = logger(__name__)

SERVICE: Final = "runner"
# The share of the drain's time in which going runs may finish. In the rest they are handed back and acknowledged.
FINISHING_SHARE: Final = 0.7
# After a short break the runner is back within the grace in which its work stays its own.
RECONNECTS: Final = (("grpc.max_reconnect_backoff_ms", 300),)
# Health under this name says whether new work can arrive and begin: a coordinator has answered lately, and hung
# functions do not hold every place.
SESSIONS: Final = "windlass.coordinator.v1.RunnerSessions"


def main(settings: RunnerSettings) -> int:
    # It reads, copies and stores outputs of megabytes.
    keep_freed_memory()
    # The user's modules run in this process, so it keeps the event loop and the collections that they expect.
    return run_service(SERVICE, settings, RunnerService)


class RunnerService:
    """The parts of one runner, joined. Nothing runs yet."""

    def __init__(self, settings: RunnerSettings) -> None:
        self._settings = settings
        self.name = settings.name
        self._rendering = Rendering()
        self._connect()
        self._load_modules()
        self._join_coordinators()
        self._join_work()
        self._serve()

    def _connect(self) -> None:
        """Time, threads, the disk and other processes. A simulation has its own, here and in `_new_server`."""
        settings = self._settings
        self._clock: Clock = SystemClock()
        self._fresh_id = fresh_uuid
        self._module_loop = ModuleLoop()
        key = settings.runner_key_file.read_text(encoding="utf-8").strip() if settings.runner_key_file else None
        self._channels = ChannelPool(credential=None, bearer=key, tls=settings.tls, options=RECONNECTS)
        self._addresses = AddressBook(settings.coordinators)
        self._shared = DirectoryOutputs(settings.output_store) if settings.output_store is not None else None

    def _load_modules(self) -> None:
        self._registry = registry
        load_modules(self._settings, self._rendering)

    def _join_coordinators(self) -> None:
        settings = self._settings
        attach = Attach(
            holder=self.name,
            capacity=settings.runner_concurrency,
            version=VERSION,
            labels=settings.labels,
            modules=list(self._registry),
            idempotent_modules=self._registry.idempotent,
        )
        self._sessions = CoordinatorSessions(self._clock)
        self._timing = RUN.scaled(settings.lease_scale)
        self._holder = SessionHolder(
            attach=attach,
            timing=self._timing,
            codec=CODEC,
            open_stream=lambda address: RunnerSessionsStub(self._channels.get(address)).Session(),
            owner=self._sessions,
            forget=self._channels.forget,
            clock=self._clock,
            fresh_id=self._fresh_id,
        )

    def _join_work(self) -> None:
        outputs = CoordinatorOutputs(
            self._shared, self._addresses, self._channels, instance_id=lambda: self._holder.instance_id
        )
        self._worker = Worker(
            registry=self._registry,
            rendering=self._rendering,
            outputs=outputs,
            holder=self._sessions,
            clock=self._clock,
            concurrency=self._settings.runner_concurrency,
            stalled_seconds_max=STALLED_TERMS_MAX * self._timing.term,
            module_loop=self._module_loop,
        )
        self._sessions.join(self._holder, self._worker)

    def _new_server(self) -> GrpcServer:
        settings = self._settings
        return GrpcServer(
            settings.grpc_address,
            guard=Guard({}, keys=SystemKey(settings.system_key_hash_file)),
            tls=settings.tls,
            public=settings.public,
        )

    def _serve(self) -> None:
        self.server = self._new_server()
        self.server.health.set(SESSIONS, False)

    async def prepare(self) -> None:
        if self._shared is not None:
            await self._shared.sweep()
        log.info("modules are loaded", runner=self.name, modules=len(list(self._registry)))

    def loops(self) -> Loops:
        return (
            ("sessions", lambda: self._holder.run(self._addresses.changes())),
            ("worker", self._worker.run),
            ("module loop", self._end_when_given_up),
            ("health", lambda: self.server.health.follow(self._can_work, services=(SESSIONS,), every_seconds=0.2)),
        )

    async def _end_when_given_up(self) -> None:
        """The end of this loop ends the process."""
        await self._worker.gave_up.wait()
        async with asyncio.timeout(self._settings.drain_seconds):
            await self._finish_or_hand_back()

    async def _can_work(self) -> bool:
        return self._worker.can_work()

    def drain_steps(self) -> Steps:
        return (("work", self._finish_or_hand_back),)

    async def _finish_or_hand_back(self) -> None:
        """Let going runs finish, hand back the rest, and return when everything is acknowledged."""
        self._worker.drain()
        try:
            async with asyncio.timeout(self._settings.drain_seconds * FINISHING_SHARE):
                await self._holder.drain()
        except TimeoutError:
            self._worker.hand_back_going()
            await self._holder.drain()

    def close_steps(self) -> Steps:
        return (
            ("sessions", self._holder.stop),
            ("modules", lambda: asyncio.to_thread(self._worker.close)),
            ("rendering", lambda: asyncio.to_thread(self._rendering.close)),
            ("channels", self._channels.close),
        )


def load_modules(settings: RunnerSettings, rendering: Rendering) -> None:
    """Register the built-in modules and the user's."""
    # The lines of modules are shown at our level, those of libraries from WARNING on.
    MODULE_LOG.setLevel(settings.log_level.upper())
    for module in built_in(Egress(settings.allowed_networks), rendering):
        registry.add(module)
    import_files(settings.module_files)
