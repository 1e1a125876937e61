"""The executions that this coordinator has parked and that wait for the circuits of targets.

Each is parked until a time at which its circuit may let it through. If the circuit closes before that, by itself or by
a person, the executions are woken in waves, each twice as large as the one before, like the work that is still held
(circuits.py). So a target that is just up again is not called by all of them at once.

Hazard: this is only in the memory of this process. An execution that was parked by another process, or that finds no
room here, looks at its circuit by itself when its time has come.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.clock import Clock
from services.chassis.telemetry.logs import logger
from services.coordinator.core.circuits import wave
from services.coordinator.core.state import Execution
from services.coordinator.core.values import SECOND, Instant

log = logger(__name__)

# A workspace and a target.
CircuitKey: TypeAlias = tuple[str, str]

WAVE_SECONDS: Final = 0.25
# The executions of one circuit that are remembered. The oldest one, which looks by itself soonest, is forgotten first.
_EXECUTIONS_MAX: Final = 10_000
# Executions that are woken in one call.
_CALL_MAX: Final = 1_000


class ParkedWait(NamedTuple):
    execution_id: str
    # The epoch of the lease that ended when it was parked.
    epoch: int
    # The time at which it looks by itself.
    until: Instant
    # How much of its work waits for the circuit.
    works: int


class ParkedQueue(Protocol):
    """The dispatchers, which have the queue of all executions."""

    async def wake(self, workspace: str, waits: Sequence[ParkedWait]) -> frozenset[str]:
        """The executions that are still parked are woken. Returns the ids of those that are still held, because the
        report that parks them has not arrived. Raises DependencyUnavailable."""
        ...


class ParkedWaits:
    def __init__(self) -> None:
        # How much work was parked, by the second in which it looks by itself.
        self._works: defaultdict[CircuitKey, Counter[int]] = defaultdict(Counter)
        self._waits: defaultdict[CircuitKey, deque[ParkedWait]] = defaultdict(lambda: deque(maxlen=_EXECUTIONS_MAX))

    def add(self, execution: Execution, epoch: int) -> None:
        works: Counter[CircuitKey] = Counter()
        until: dict[CircuitKey, Instant] = {}
        for hold in execution.held_back.values():
            circuit = execution.origin.workspace, hold.target
            self._works[circuit][hold.until // SECOND] += 1
            works[circuit] += 1
            until[circuit] = min(hold.until, until.get(circuit, hold.until))
        for circuit, count in works.items():
            self._waits[circuit].append(ParkedWait(execution.execution_id, epoch, until[circuit], count))

    def circuits(self) -> Sequence[CircuitKey]:
        """Those for which work that was parked here waits."""
        return list(self._works)

    def works_at(self, circuit: CircuitKey, now: Instant) -> int:
        """How much work was parked here and has not looked at the circuit since."""
        if circuit not in self._works:
            return 0
        works = self._works[circuit]
        for second in [each for each, count in works.items() if each < now // SECOND or count <= 0]:
            del works[second]
        if not works:
            del self._works[circuit]
        return works.total()

    def take(self, circuit: CircuitKey, count: int, now: Instant) -> list[ParkedWait]:
        """The executions that wait longest, at most so many. Those that look by themselves by now are forgotten."""
        waits: deque[ParkedWait] = self._waits.get(circuit, deque())
        taken: list[ParkedWait] = []
        while waits and len(taken) < count:
            wait = waits.popleft()
            if wait.until > now:
                taken.append(wait)
        if not waits:
            self._waits.pop(circuit, None)
        return taken

    def woken(self, circuit: CircuitKey, waits: Iterable[ParkedWait]) -> None:
        """They are not parked any more."""
        for wait in waits:
            if circuit in self._works:
                self._works[circuit][wait.until // SECOND] -= wait.works

    def put_back(self, circuit: CircuitKey, waits: Sequence[ParkedWait]) -> None:
        if waits:
            self._waits[circuit].extendleft(reversed(waits))

    def with_waits(self) -> Sequence[CircuitKey]:
        return list(self._waits)


class ParkedWaking:
    """Wakes executions that wait for circuits that are closed."""

    def __init__(
        self, *, waits: ParkedWaits, is_open: Callable[[CircuitKey], bool], queue: ParkedQueue, clock: Clock
    ) -> None:
        self._waits = waits
        self._is_open = is_open
        self._queue = queue
        self._clock = clock
        # How many waves of a circuit have been woken.
        self._waves: Counter[CircuitKey] = Counter()

    async def run(self) -> None:
        while True:
            await self._clock.sleep(WAVE_SECONDS)
            try:
                await self.run_once()
            except DependencyUnavailable as failure:
                log.info("parked executions cannot be woken now", error=str(failure))

    async def run_once(self) -> None:
        closed = [circuit for circuit in self._waits.with_waits() if not self._is_open(circuit)]
        self._waves = Counter({circuit: self._waves[circuit] for circuit in closed})
        for circuit in closed:
            now = self._clock.epoch_ns() // 1_000
            waits = self._waits.take(circuit, min(_CALL_MAX, wave(self._waves[circuit])), now)
            if waits:
                await self._wake(circuit, waits)
                self._waves[circuit] += 1

    async def _wake(self, circuit: CircuitKey, waits: Sequence[ParkedWait]) -> None:
        try:
            held = await self._queue.wake(circuit[0], waits)
        except DependencyUnavailable:
            self._waits.put_back(circuit, waits)
            raise
        self._waits.put_back(circuit, [each for each in waits if each.execution_id in held])
        self._waits.woken(circuit, [each for each in waits if each.execution_id not in held])
