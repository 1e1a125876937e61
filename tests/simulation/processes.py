"""The simulated processes: the services with their real wiring, on the clock, the network and the stores of a world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from services.chassis.grpc.addresses import AddressBook
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.lease.timing import EXECUTION, RUN
from services.chassis.process.lifecycle import Loops, Process, Steps
from services.chassis.process.service import Service, plug_in
from services.coordinator.config import CoordinatorSettings
from services.coordinator.wiring import CoordinatorService
from services.dispatcher.config import DispatcherSettings
from services.dispatcher.wiring import LOST_GRANT_SECONDS, REDELIVER_SECONDS, DispatcherService
from services.runner.app.module_loop import ModuleLoop
from services.runner.app.modules import built_in
from services.runner.config import RunnerSettings
from services.runner.core.egress import Egress
from services.runner.wiring import RunnerService
from tests.simulation.channels import Channels
from tests.simulation.ledger import declare_modules
from tests.simulation.loop import Host
from tests.simulation.network import Server
from tests.simulation.settings import CIRCUIT_PERMITS, SNAPSHOT_EVENTS
from tests.support.memory_circuits import MemoryCircuits
from tests.support.memory_journal import MemoryJournal, MemoryReads
from tests.support.memory_mailbox import MemoryHousekeeping, MemoryMailbox
from tests.support.memory_queue import MemoryLeases, MemoryQueue, MemoryQueueReads
from tests.support.session_store import MemorySessionStore, live_instances
from windlass.catalog.v1 import catalog_pb2, catalog_pb2_grpc
from windlass.definition.examination import examine
from windlass.sdk import Registry

if TYPE_CHECKING:
    from tests.simulation.world import World

EFFECT_SECRET: Final = b"s" * 32
# Loops that look after what a simulation does not have: real connections, partitions, keys and metrics.
_LEFT_OUT: Final = frozenset(
    {"notice listener", "health", "measures", "retention", "partitions", "keys", "idle circuits"}
)


def address_of(name: str) -> str:
    return f"{name}:1"


class _Nothing:
    """A connection that is not there: nothing is asked of it."""

    async def close(self) -> None:
        """There is nothing to close."""

    async def sizes(self, keys: Sequence[str]) -> Sequence[int | OSError]:
        """No output is so large that it is kept here."""
        return [FileNotFoundError() for _ in keys]


class SimulatedDispatcher(DispatcherService):
    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._address = address_of(name)
        super().__init__(
            DispatcherSettings(
                database_url="in memory", lease_scale=world.scale, replica=name.rpartition("-")[2], drain_seconds=5.0
            )
        )
        world.notices[name] = self._replica_notices.on_notice

    def _connect(self) -> None:
        world, scale = self._world, self._settings.lease_scale
        tables, run = world.queue, world.database.run
        self._clock, self._fresh_id = world.clock, world.fresh_id
        self._database = self._connection = cast("Any", _Nothing())
        self._queue = cast("Any", MemoryQueue(tables, run))
        self._reads = cast("Any", MemoryQueueReads(tables, run))
        self._failed_rows = cast("Any", _Nothing())
        self._leases = cast("Any", MemoryLeases(tables, run, lease_scale=scale))
        self._mailbox = cast("Any", MemoryMailbox(tables, run, redeliver_seconds=REDELIVER_SECONDS * scale))
        self._housekeeping = cast(
            "Any",
            MemoryHousekeeping(
                tables, run, lost_grant_seconds=LOST_GRANT_SECONDS * scale, notified=world.notify_dispatchers
            ),
        )
        self._sessions = cast(
            "Any", MemorySessionStore(EXECUTION.scaled(scale), world.clock, rows=world.coordinator_sessions, run=run)
        )

    def _new_server(self) -> Any:
        return Server(self._world.network, self._address)

    async def prepare(self) -> None:
        """There are no migrations to check."""

    def loops(self) -> Loops:
        return [each for each in super().loops() if each[0] not in _LEFT_OUT]


class SimulatedCoordinator(CoordinatorService):
    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._address = address_of(name)
        super().__init__(
            CoordinatorSettings(
                database_url="in memory",
                lease_scale=world.scale,
                replica=name.rpartition("-")[2],
                dispatchers=",".join(map(address_of, world.names("dispatcher"))),
                apis=address_of("api-0"),
                executions_max=world.executions_max,
                circuit_window_seconds=5.0,
                circuit_outcomes_min=4,
                circuit_cool_down_seconds=0.5,
                circuit_cool_down_seconds_max=1.0,
                circuit_permits=CIRCUIT_PERMITS,
                circuit_permit_seconds=2.0,
                snapshot_events=SNAPSHOT_EVENTS,
                drain_seconds=5.0,
            )
        )

    def _connect(self) -> None:
        world, scale = self._world, self._settings.lease_scale
        run, rows = world.database.run, world.runner_sessions
        self._clock, self._fresh_id = world.clock, world.fresh_id
        self._database = self._beats = self._writer = self._importer = cast("Any", _Nothing())
        self._loader = self._patient_loader = cast("Any", _Nothing())
        self._journal = cast(
            "Any",
            MemoryJournal(
                world.journal,
                run,
                live_instances=lambda granted_again: live_instances(rows, world.clock.now(), granted_again),
            ),
        )
        self._reads = cast("Any", MemoryReads(world.journal, run))
        self._runner_sessions = cast("Any", MemorySessionStore(RUN.scaled(scale), world.clock, rows=rows, run=run))
        self._imports = cast("Any", _Nothing())
        self._circuit_rows = cast("Any", MemoryCircuits(world.circuits, world.clock, self._circuit_policy, run))
        self._blobs = cast("Any", _Nothing())
        self._channels = cast("Any", Channels(world.network))

    def _new_server(self) -> Any:
        return Server(self._world.network, self._address)

    async def prepare(self) -> None:
        """The circuits are read before the first grant, as by the product. There are no migrations to check. While the
        database is away, a real process ends and is started again; this one asks again."""
        while True:
            try:
                return await self._circuits.tick()
            except DependencyUnavailable:
                await self._clock.sleep(0.1)

    def loops(self) -> Loops:
        return [each for each in super().loops() if each[0] not in _LEFT_OUT]


class SimulatedRunner(RunnerService):
    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._address = address_of(name)
        super().__init__(
            RunnerSettings(
                lease_scale=world.scale,
                runner_id=name,
                coordinators=",".join(map(address_of, world.names("coordinator"))),
                runner_concurrency=world.runner_concurrency,
                drain_seconds=2.0,
            )
        )

    def _connect(self) -> None:
        world = self._world
        self._clock, self._fresh_id = world.clock, world.fresh_id
        self._module_loop = _OnThisLoop()
        self._channels = cast("Any", Channels(world.network))
        self._addresses = AddressBook(self._settings.coordinators)
        self._shared = None

    def _load_modules(self) -> None:
        self._registry = Registry()
        for module in built_in(Egress(()), self._rendering):
            self._registry.add(module)
        declare_modules(self._registry, self._world.ledger)

    def _new_server(self) -> Any:
        return Server(self._world.network, self._address)

    async def prepare(self) -> None:
        """Nothing is shared."""

    def loops(self) -> Loops:
        return [each for each in super().loops() if each[0] not in _LEFT_OUT]

    def close_steps(self) -> Steps:
        return [each for each in super().close_steps() if each[0] == "sessions"]


class _OnThisLoop(ModuleLoop):
    """Async modules run on the loop of the simulation, where nothing blocks."""

    async def call(self, name: str, function: Any, *given: Any) -> Any:
        return await function(*given)

    def stalled_seconds(self, now: float) -> float:
        return 0.0


class SimulatedCatalog(catalog_pb2_grpc.CatalogServiceServicer):
    """The part of an api that coordinators ask."""

    def __init__(self, definitions: dict[str, dict[str, Any]]) -> None:
        self._definitions = definitions

    async def GetVersion(self, request: Any, context: Any) -> Any:
        definition = self._definitions.get(request.version_id)
        if definition is None:
            raise Refusal("VERSION_NOT_FOUND", "no such version")
        return catalog_pb2.GetVersionResponse(
            workspace="w",
            workflow=definition["name"],
            version=1,
            definition=orjson.dumps(definition),
            effect_secret=EFFECT_SECRET,
            template_references=orjson.dumps(examine(definition).references),
        )

    async def IdentifyKey(self, request: Any, context: Any) -> Any:
        raise Refusal("API_KEY_NOT_FOUND", "runners come without a key here")


_KINDS: Final = {"dispatcher": SimulatedDispatcher, "coordinator": SimulatedCoordinator, "runner": SimulatedRunner}


class SimulatedProcess:
    """A process that can be started, drained, ended and stopped. Each start is a new life, which knows nothing."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.kind = name.partition("-")[0]
        self.host: Host | None = None
        # It may not be started any more.
        self.is_gone_for_good = False
        self._world = world
        self._process: Process | None = None

    @property
    def is_up(self) -> bool:
        return self.host is not None

    def start(self) -> None:
        if self.host is not None or self.is_gone_for_good:
            return
        world = self._world
        self.host = Host(self.name)
        world.hosts.append(self.host)
        world.note(f"{self.name} starts")
        world.loop.spawn_as(self.host, self._live(self.host))

    async def _live(self, host: Host) -> None:
        process = self._process = Process(self.kind, drain_seconds=5.0)

        async def wire(process: Process) -> None:
            service = cast("Service", _KINDS[self.kind](self._world, self.name))
            plug_in(process, service)
            await service.prepare()
            await service.server.start()

        code = await process.run(wire)
        if code:
            self._world.found(f"{self.name} went down by itself")
        self._world.note(f"{self.name} has ended")
        self._gone(host)

    def end(self) -> None:
        """Kill it."""
        if self.host is not None:
            self._world.note(f"{self.name} is killed")
            host = self.host
            self._world.loop.end(host)
            self._gone(host)

    def _gone(self, host: Host) -> None:
        host.is_dead = True
        if self.host is host:
            self.host = None
        self._world.notices.pop(self.name, None)
        self._world.network.host_ended(host)

    def drain(self) -> None:
        """Ask it to stop, as SIGTERM does."""
        if self.host is not None and self._process is not None:
            self._world.note(f"{self.name} drains")
            self._world.loop.call_as(self.host, 0.0, self._process.stop)

    def stop(self) -> None:
        """SIGSTOP."""
        if self.host is not None:
            self._world.note(f"{self.name} is stopped")
            self._world.loop.stop_host(self.host)

    def go_on(self) -> None:
        """SIGCONT."""
        if self.host is not None and self.host.is_stopped:
            self._world.note(f"{self.name} goes on")
            self._world.loop.go_on(self.host)
