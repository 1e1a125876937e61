"""The faults of a world, drawn from its seed: which kinds it knows, when they happen, and to whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from tests.simulation.database import Stage
from tests.simulation.loop import Host
from tests.simulation.processes import SimulatedProcess

if TYPE_CHECKING:
    from tests.simulation.world import World

# Two terms of a lease, as scaled.
LONG_SECONDS: Final = 6.0


class Faults:
    def __init__(self, world: World) -> None:
        self._world = world
        self._random = Random(f"faults:{world.seed}")
        self._kinds: Sequence[Callable[[], None]] = (
            self._end,
            self._end,
            self._end_at_a_statement,
            self._end_at_a_statement,
            self._stop,
            self._cut,
            self._cut,
            self._break_connections,
            self._slow_network,
            self._call_trouble,
            self._call_trouble,
            self._database_away,
            self._database_trouble,
            self._drain,
        )
        # Each world knows some of them only, so that they are not always mixed.
        self._chosen = self._random.sample(self._kinds, self._random.randint(0, 5))
        self._pause = self._random.choice([0.3, 1.0, 2.0])
        # Statements until the named process is ended at this stage.
        self._armed: dict[tuple[str, Stage], int] = {}
        self._is_healed = False
        self._survivors: set[str] = set()
        world.database.reached = self._reached

    async def run(self) -> None:
        while self._chosen:
            await self._world.clock.sleep(self._random.uniform(0.0, 2 * self._pause))
            if self._is_healed:
                return
            self._random.choice(self._chosen)()

    def _later(self, seconds: float, mend: Callable[[], None]) -> None:
        world = self._world

        def mend_unless_healed() -> None:
            if not self._is_healed:
                mend()

        world.loop.call_as(world.loop.world, seconds, mend_unless_healed)

    def _someone(self) -> SimulatedProcess:
        return self._random.choice([*self._world.processes.values()])

    def _link(self) -> tuple[str, str]:
        """A client and a server."""
        names = self._world.names
        links = [
            *((runner, each) for runner in names("runner") for each in names("coordinator")),
            *((each, server) for each in names("coordinator") for server in names("dispatcher")),
            *(("api-0", server) for server in names("dispatcher")),
        ]
        return self._random.choice(links)

    # ── kinds ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _end(self) -> None:
        process = self._someone()
        process.end()
        self._restart(process)

    def _restart(self, process: SimulatedProcess) -> None:
        seconds = self._random.choice([0.05, self._random.uniform(0.1, 1.0), self._random.uniform(1.0, LONG_SECONDS)])
        self._later(seconds, process.start)

    def _end_at_a_statement(self) -> None:
        process = self._someone()
        stage = self._random.choice([*Stage])
        self._armed[process.name, stage] = self._random.choice([1, 2, 5, 20])

    def _reached(self, host: Host, stage: Stage) -> None:
        left = self._armed.get((host.name, stage))
        if left is None or host.is_dead:
            return
        if left > 1:
            self._armed[host.name, stage] = left - 1
            return
        del self._armed[host.name, stage]
        process = self._world.processes[host.name]
        if process.host is host:
            # The step that has come here ends first; then nothing of the process runs any more.
            self._world.note(f"{host.name} is to be killed {stage.value}")
            process.end()
            self._restart(process)

    def _stop(self) -> None:
        process = self._someone()
        process.stop()
        self._later(self._random.uniform(0.1, LONG_SECONDS), process.go_on)

    def _cut(self) -> None:
        client, server = self._link()
        network = self._world.network
        ways = self._random.choice([[(client, server)], [(server, client)], [(client, server), (server, client)]])
        for way in ways:
            self._world.note(f"cut {way[0]} from {way[1]}")
            network.cut(*way)
        seconds = self._random.choice([self._random.uniform(0.05, 1.0), self._random.uniform(1.0, LONG_SECONDS)])

        def mend() -> None:
            for way in ways:
                network.mend(*way)

        self._later(seconds, mend)

    def _break_connections(self) -> None:
        network = self._world.network
        for connection in network.connections():
            if self._random.random() < 0.4:
                network.break_connection(connection)

    def _slow_network(self) -> None:
        network = self._world.network
        network.delay_max = self._random.choice([0.05, 0.3, 1.0])
        self._later(self._random.uniform(0.5, LONG_SECONDS), lambda: setattr(network, "delay_max", 0.003))

    def _call_trouble(self) -> None:
        network = self._world.network
        network.call_trouble = self._random.choice([0.1, 0.4, 0.8])
        self._later(self._random.uniform(0.5, LONG_SECONDS), lambda: setattr(network, "call_trouble", 0.0))

    def _database_away(self) -> None:
        database = self._world.database
        self._world.note("the database is away")
        database.is_away = True
        self._later(self._random.uniform(0.1, 4.0), lambda: setattr(database, "is_away", False))

    def _database_trouble(self) -> None:
        database = self._world.database
        database.trouble = self._random.choice([0.05, 0.2, 0.5])
        self._later(self._random.uniform(0.5, LONG_SECONDS), lambda: setattr(database, "trouble", 0.0))

    def _drain(self) -> None:
        process = self._someone()
        process.drain()
        self._later(LONG_SECONDS, process.start)
        self._later(self._random.uniform(0.5, LONG_SECONDS), process.start)

    # ── healing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def heal(self) -> None:
        """Mend everything; in the liveness mode only what one replica of each service needs."""
        world = self._world
        world.note("healed")
        self._is_healed = True
        self._armed.clear()
        world.database.is_away, world.database.trouble = False, 0.0
        world.network.mend_all()
        self._survivors = set(world.processes)
        if world.is_liveness:
            self._survivors = {
                self._random.choice(world.names(kind)) for kind in ("dispatcher", "coordinator", "runner")
            }
        for process in world.processes.values():
            if process.name in self._survivors:
                process.go_on()
                self._keep_up(process)
            else:
                self._break_for_good(process)

    def _keep_up(self, process: SimulatedProcess) -> None:
        """It may be in the middle of a drain."""
        process.start()
        world = self._world
        world.loop.call_as(world.loop.world, 0.5, self._keep_up, process)

    def _break_for_good(self, process: SimulatedProcess) -> None:
        self._random.choice([self._end_for_good, self._stop_for_good, self._cut_for_good, self._crash_for_good])(
            process
        )

    @staticmethod
    def _end_for_good(process: SimulatedProcess) -> None:
        process.end()
        process.is_gone_for_good = True

    @staticmethod
    def _stop_for_good(process: SimulatedProcess) -> None:
        process.start()
        process.stop()

    def _cut_for_good(self, process: SimulatedProcess) -> None:
        """It reaches the database, and nobody else."""
        process.go_on()
        process.start()
        for other in (*self._world.processes, "api-0"):
            self._world.network.cut(process.name, other)
            self._world.network.cut(other, process.name)

    def _crash_for_good(self, process: SimulatedProcess) -> None:
        process.end()
        process.start()
        world = self._world
        world.loop.call_as(world.loop.world, self._random.uniform(0.2, 4.0), self._crash_for_good, process)
