"""A simulated world: processes, network and database, all drawn from one seed, on one virtual clock and one thread.

The world goes through two times. First, faults happen. Then it is healed: in the safety mode wholly, in the liveness
mode only one replica of each service, and the others stay broken for good. In both, every accepted start has to come to
its end then. What must always hold is checked after every commit, every call of a module and every frame.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import random as global_random
import sys
import traceback
import warnings
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from uuid import UUID

import structlog

from tests.simulation.client import EXISTING, NAME, QUEUED, Client
from tests.simulation.database import SimulatedDatabase
from tests.simulation.faults import Faults
from tests.simulation.invariants import Invariants
from tests.simulation.ledger import Ledger
from tests.simulation.loop import Host, VirtualClock, VirtualLoop, present_host
from tests.simulation.network import Network
from tests.simulation.processes import SimulatedProcess
from tests.simulation.settings import SCALE
from tests.simulation.starts import draw_starts
from tests.simulation.workloads import draw_workloads
from tests.support.memory_circuits import CircuitRows
from tests.support.memory_journal import JournalTables
from tests.support.memory_queue import QueueTables
from tests.support.session_store import SessionRow
from windlass.dispatcher.v1.queue_pb2 import TenantLimits

# By then everything has to be over, counted from the healing. The longest sleep and a few backoffs fit in, and a loop
# and its fork whose children take turns in the only slot of a workspace.
HEALED_SECONDS_MAX: Final = 180.0


@dataclass(frozen=True)
class Outcome:
    seed: int
    # The same for the same seed and the same code.
    trace_hash: str
    violations: Sequence[str]
    virtual_seconds: float
    executions: int
    cases: dict[str, int]


class World:
    def __init__(self, seed: int, trace: list[str] | None = None) -> None:
        self.seed = seed
        self.random = Random(f"world:{seed}")
        self.is_liveness = self.random.random() < 0.35
        self.violations: list[str] = []
        self.trace = trace
        self._hash = hashlib.sha256()
        self._ids = Random(f"ids:{seed}")
        self.scale = SCALE
        self.loop = VirtualLoop()  # type: ignore[abstract] # it has what the simulated code needs
        self.clock = VirtualClock(self.loop)
        self.network = Network(self.loop, Random(f"network:{seed}"), self.note)
        self.database = SimulatedDatabase(self.loop, Random(f"database:{seed}"), self.note)
        self._draw()
        self.coordinator_sessions: dict[str, SessionRow] = {}
        self.runner_sessions: dict[str, SessionRow] = {}
        self.queue = QueueTables(self.clock, is_live=self._is_live)
        self.journal = JournalTables()
        self.circuits: CircuitRows = {}
        self.hosts: list[Host] = []
        self.notices: dict[str, object] = {}
        self.client_host = Host(NAME)
        self.hosts.append(self.client_host)
        self.client = Client(self)
        self.invariants = Invariants(self)
        self.ledger = Ledger(self.clock, self.invariants.call_began)
        self.database.committed = self.invariants.check_commit
        self.network.taps.append(self.invariants.frame_sent)
        self.processes = {name: SimulatedProcess(self, name) for name in self._names}
        self.faults = Faults(self)

    def _draw(self) -> None:
        random = self.random
        counts = {
            "dispatcher": random.randint(1, 2),
            "coordinator": random.randint(1, 3),
            "runner": random.randint(1, 3),
        }
        if self.is_liveness:
            counts = {kind: max(2, count) for kind, count in counts.items()}
        self._names = [f"{kind}-{n}" for kind, count in counts.items() for n in range(count)]
        self.executions_max = random.choice([2, 5, 100])
        self.runner_concurrency = random.choice([1, 2, 4, 10])
        self.faults_until = random.uniform(4.0, 14.0)
        self.workloads = draw_workloads(random)
        self.starts = draw_starts(random, self.workloads, self.faults_until)
        self.limits = {
            workspace: TenantLimits(executions_max=random.choice([1, 2, 5, 20]), queued_max=1_000, revision=1)
            for workspace in sorted({start.workspace for start in self.starts})
        }

    def names(self, kind: str) -> list[str]:
        return [name for name in self._names if name.startswith(kind)]

    def of_kind(self, kind: str) -> list[SimulatedProcess]:
        return [process for process in self.processes.values() if process.kind == kind]

    def fresh_id(self) -> str:
        return str(UUID(int=self._ids.getrandbits(128), version=4))

    def _is_live(self, instance_id: str) -> bool:
        row = self.coordinator_sessions.get(instance_id)
        return row is not None and row.is_live

    def notify_dispatchers(self, channel: str, payloads: Sequence[str]) -> None:
        for name, heard in list(self.notices.items()):
            host = self.processes[name].host
            if host is not None and self.random.random() < 0.9:
                for payload in payloads:
                    self.loop.call_as(host, self.network.delay(), heard, channel, payload)  # type: ignore[arg-type]

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────────────

    def note(self, what: str) -> None:
        line = f"{self.loop.time():10.6f} {what}"
        self._hash.update(line.encode())
        if self.trace is not None:
            self.trace.append(line)

    def log(self, _logger: object, level: str, event: MutableMapping[str, Any]) -> Any:
        """A line of a process goes into the trace, and nowhere else."""
        raised = event.pop("exc_info", None)
        facts = " ".join(f"{name}={value}" for name, value in event.items() if name not in ("event", "origin"))
        if self.trace is not None:
            self.trace.append(f"{self.loop.time():10.6f} {present_host().name} {level}: {event['event']} {facts}")
            if raised is not None:
                self.trace += traceback.format_exception(sys.exception() if raised is True else raised)
        raise structlog.DropEvent

    def found(self, violation: str) -> None:
        self.note(f"VIOLATION {violation}")
        self.violations.append(f"at {self.loop.time():.3f} s: {violation}")

    def _unhandled(self) -> bool:
        for failure in self.loop.failures:
            raised = failure.get("exception")
            self.found(f"unhandled: {failure.get('message')} {raised!r}")
            if self.trace is not None and isinstance(raised, BaseException):
                self.trace += traceback.format_exception(raised)
        self.loop.failures.clear()
        return bool(self.violations)

    def run(self) -> Outcome:
        loop = self.loop
        global_random.seed(self.seed)
        loop.spawn_as(self.client_host, self.client.run())
        for process in self.processes.values():
            process.start()
        loop.spawn_as(loop.world, self.faults.run())
        loop.run_until(self._unhandled, self.faults_until)
        self.faults.heal()
        if not loop.run_until(lambda: self._unhandled() or self.is_over(), self.faults_until + HEALED_SECONDS_MAX):
            self.found(f"L10: not over {HEALED_SECONDS_MAX:g} s after the healing: {self._unfinished()}")
        if not self.violations:
            self.invariants.check_end()
        executions, cases = len(self.journal.executions), dict(self.invariants.cases + self.network.cases)
        return Outcome(self.seed, self._hash.hexdigest(), self.violations, loop.time(), executions, cases)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    def accepted(self) -> dict[str, int]:
        """The executions that clients were told of, with the number of their planned start."""
        found: dict[str, int] = {}
        for number, start in enumerate(self.starts):
            for execution_id in (start.execution_id, *start.repeats):
                outcome, _ = self.client.answers.get(execution_id, (0, ""))
                if outcome == QUEUED:
                    found[execution_id] = number
        return found

    def is_over(self) -> bool:
        if self.queue.queue or self.client.people.sendings_open:
            return False
        sent = (each for start in self.starts for each in (start.execution_id, *start.repeats))
        if not all(each in self.client.answers for each in sent):
            return False
        return all(self.invariants.is_final(each) for each in self.accepted())

    def _unfinished(self) -> str:
        open_ = [each for each in self.accepted() if not self.invariants.is_final(each)]
        rows = [f"{row.execution_id} {row.state.name} {row.holder}" for row in self.queue.queue.values()]
        return f"{len(open_)} executions {open_[:3]}, {len(rows)} rows of the queue {rows[:3]}"


def simulate(seed: int, trace: list[str] | None = None) -> Outcome:
    """The world of this seed, from its beginning to its end. Without a trace it is silent."""
    configured, was_collecting = structlog.get_config(), gc.isenabled()
    # The collector must not run at a time that depends on the machine. It never looks at what was there before the
    # first world, which would take a fifth of the time of each. What a thread still holds at the end of a world, it
    # finds after the next one.
    gc.disable()
    if not gc.get_freeze_count():
        gc.freeze()
    _silence()
    try:
        outcome = _outcome_of(seed, trace)
        with _without_last_words():
            gc.collect()
        return outcome
    finally:
        structlog.configure(**configured)
        if was_collecting:
            gc.enable()


def _outcome_of(seed: int, trace: list[str] | None) -> Outcome:
    """Nothing holds the world any more on return, so all of it can be collected."""
    world = World(seed, trace)
    if trace is not None:
        structlog.configure(processors=[world.log], wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    outcome = world.run()
    _silence()
    with _without_last_words():
        world.loop.dispose(world.hosts)
    return outcome


def _silence() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


@contextmanager
def _without_last_words() -> Iterator[None]:
    """What the coroutines of a world that is over do, raise and log at their end is lost."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    sys.unraisablehook = hook


__all__ = ["EXISTING", "Outcome", "World", "simulate"]
