"""The circuit of a target: when calls of it stop, and how they begin again.

A target is what work calls: a host and port over HTTP, or whatever a module names. Each target of a workspace has one
circuit, which all coordinators share.

    CLOSED ──too many failures──► OPEN ──the cool-down is over, and work asks for a permit──► HALF_OPEN
      ▲                            ▲                                                            │  │
      │                            └──────────────────── a probe fails ─────────────────────────┘  │
      └──────────────────────────────── enough probes are answered ────────────────────────────────┘

CLOSED       Calls are made. Their outcomes are counted in a window of some seconds. When there are enough of them, and
             too large a share has failed, the circuit opens.
OPEN         No call is made. Each further opening without a good end lasts twice as long as the one before.
HALF_OPEN    A piece of work that has a permit makes its call; it is a probe. Everything else waits. A permit ends after
             a term unless the coordinator of the probe renews it, so a permit of a dead coordinator comes back.

A failure is an outcome that says something about the target: TRANSIENT or TIMEOUT. Every other outcome is an answer,
also one that the workflow does not like (HTTP 404).

`generation` rises whenever the circuit opens or is reset by hand. Outcomes are counted under the generation in which
their calls were granted, and those of an earlier one change nothing. In HALF_OPEN only outcomes of probes count, each
once, because a probe gives up its permit with its outcome.

Coordinators gather outcomes and bring them here several times a second, in one `CircuitVisit` for each target, under
the lock of the row. So a run costs no statement. Times are those of the database.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from services.coordinator.core.values import SECOND, Instant, Span

# The parts of a window. A part that is too old is forgotten as a whole.
SLOTS = 10
# A coordinator that has not said for so long how much work waits is not counted any more.
WAITING_TERM: Span = 10 * SECOND
# The first wave of work that goes on after the circuit has closed. Each further one is twice as large.
_FIRST_WAVE = 10
_WAVE_MAX = 2_000


class CircuitState(StrEnum):
    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


@dataclass(slots=True, frozen=True)
class CircuitPolicy:
    """The settings of all circuits (config.py argues for the values)."""

    window: Span = 10 * SECOND
    outcomes_min: int = 10
    failure_share: float = 0.5
    cool_down: Span = 30 * SECOND
    cool_down_max: Span = 300 * SECOND
    # How many probes may be under way at once, and how many have to be answered.
    permits_max: int = 3
    permit_term: Span = 30 * SECOND

    @property
    def slot(self) -> Span:
        return max(1, self.window // SLOTS)

    def cool_down_of(self, openings: int) -> Span:
        """How long the n-th opening in a row lasts."""
        return min(self.cool_down_max, self.cool_down << min(openings - 1, 30))


class OutcomeWindow(NamedTuple):
    """The outcomes of the last slots, newest first. `slot` numbers the newest one."""

    slot: int = 0
    answers: tuple[int, ...] = (0,) * SLOTS
    failures: tuple[int, ...] = (0,) * SLOTS

    def at(self, slot: int) -> "OutcomeWindow":
        """The same outcomes as seen from a later slot. A clock that was set back is not followed."""
        passed = min(max(0, slot - self.slot), SLOTS)
        if not passed:
            return self
        fresh = (0,) * passed
        return OutcomeWindow(slot, (fresh + self.answers)[:SLOTS], (fresh + self.failures)[:SLOTS])

    def plus(self, answers: Sequence[int], failures: Sequence[int]) -> "OutcomeWindow":
        """With more outcomes, given by their age in slots."""
        return OutcomeWindow(
            self.slot,
            tuple(map(sum, zip(self.answers, answers, strict=True))),
            tuple(map(sum, zip(self.failures, failures, strict=True))),
        )


class Permit(NamedTuple):
    """The right of one piece of work to call a target whose circuit is half open."""

    # Names the work, whoever holds its execution.
    work: str
    until: Instant


class WaitingCount(NamedTuple):
    """How much work one coordinator has seen waiting."""

    coordinator: str
    works: int
    until: Instant


@dataclass(slots=True, frozen=True)
class Circuit:
    """It mirrors its row."""

    workspace: str
    target: str
    state: CircuitState = CircuitState.CLOSED
    generation: int = 0
    window: OutcomeWindow = OutcomeWindow()
    # In a row, without a good end.
    openings: int = 0
    permits: tuple[Permit, ...] = ()
    # Probes of this half-open time that were answered.
    probes_answered: int = 0
    waiting: tuple[WaitingCount, ...] = ()
    # 0: never.
    open_time: Instant = 0
    # When the target may be probed. 0: the circuit is not open.
    retry_time: Instant = 0
    last_failure_time: Instant = 0


class ProbeOutcome(NamedTuple):
    work: str
    has_answered: bool


@dataclass(slots=True, frozen=True)
class CircuitVisit:
    """What one coordinator brings to a circuit, and asks of it."""

    workspace: str
    target: str
    coordinator: str
    # Under which the outcomes were counted.
    generation: int = 0
    # By their age in slots.
    answers: tuple[int, ...] = (0,) * SLOTS
    failures: tuple[int, ...] = (0,) * SLOTS
    probes: tuple[ProbeOutcome, ...] = ()
    # Work that waits and asks for a permit, the oldest first.
    asks: tuple[str, ...] = ()
    # Probes that are under way: their permits are renewed, if they have any.
    renews: tuple[str, ...] = ()
    # Work that has a permit and does not need it any more.
    returns: tuple[str, ...] = ()
    waiting: int = 0


def visited(circuit: Circuit, visit: CircuitVisit, policy: CircuitPolicy, now: Instant) -> Circuit:
    """The circuit after the visit."""
    in_force = tuple(each for each in circuit.permits if each.until > now)
    circuit = replace(circuit, window=circuit.window.at(now // policy.slot), permits=in_force)
    if visit.generation == circuit.generation:
        circuit = _counted(circuit, visit, policy, now)
        circuit = _probed(circuit, visit.probes, policy, now)
    kept = tuple(each for each in circuit.permits if each.work not in visit.returns)
    circuit = replace(circuit, permits=kept)
    return _with_waiting(_with_permits(circuit, visit, policy, now), visit, now)


def opened_by_hand(circuit: Circuit, until: Instant, now: Instant) -> Circuit:
    if circuit.state is CircuitState.OPEN and circuit.retry_time == until:
        return circuit
    return replace(_open(circuit, now), openings=0, retry_time=until)


def reset(circuit: Circuit) -> Circuit:
    """Closed, and nothing of before counts."""
    is_closed = circuit.state is CircuitState.CLOSED
    return replace(_closed(circuit), generation=circuit.generation if is_closed else circuit.generation + 1)


def wave(number: int) -> int:
    """How much work goes on in the wave of this number, from 0 on, after the circuit has closed."""
    return min(_WAVE_MAX, _FIRST_WAVE << min(number, 30))


def waiting_at(circuit: Circuit, now: Instant) -> int:
    return sum(each.works for each in circuit.waiting if each.until > now)


def _counted(circuit: Circuit, visit: CircuitVisit, policy: CircuitPolicy, now: Instant) -> Circuit:
    """Outcomes count while the circuit is closed. In other states it has not let their calls through."""
    if circuit.state is not CircuitState.CLOSED or not (any(visit.answers) or any(visit.failures)):
        return circuit
    window = circuit.window.plus(visit.answers, visit.failures)
    last_failure_time = now if any(visit.failures) else circuit.last_failure_time
    circuit = replace(circuit, window=window, last_failure_time=last_failure_time)
    failures = sum(window.failures)
    total = failures + sum(window.answers)
    has_failed = any(visit.failures) and total >= policy.outcomes_min and failures >= policy.failure_share * total
    return _opened(circuit, policy, now) if has_failed else circuit


def _probed(circuit: Circuit, probes: Sequence[ProbeOutcome], policy: CircuitPolicy, now: Instant) -> Circuit:
    for probe in probes:
        if not any(each.work == probe.work for each in circuit.permits):
            # Its permit is over, or was of another time: what it found out is old.
            continue
        if not probe.has_answered:
            return _opened(replace(circuit, last_failure_time=now), policy, now)
        left = tuple(each for each in circuit.permits if each.work != probe.work)
        circuit = replace(circuit, permits=left, probes_answered=circuit.probes_answered + 1)
        if circuit.probes_answered >= policy.permits_max:
            return _closed(circuit)
    return circuit


def _with_permits(circuit: Circuit, visit: CircuitVisit, policy: CircuitPolicy, now: Instant) -> Circuit:
    if visit.asks and circuit.state is CircuitState.OPEN and now >= circuit.retry_time:
        circuit = replace(circuit, state=CircuitState.HALF_OPEN, retry_time=0, probes_answered=0)
    if circuit.state is not CircuitState.HALF_OPEN:
        return circuit
    until = now + policy.permit_term
    renewed = {*visit.asks, *visit.renews}
    permits = {each.work: until if each.work in renewed else each.until for each in circuit.permits}
    for work in visit.asks:
        if len(permits) < policy.permits_max:
            permits.setdefault(work, until)
    return replace(circuit, permits=tuple(Permit(*each) for each in permits.items()))


def _with_waiting(circuit: Circuit, visit: CircuitVisit, now: Instant) -> Circuit:
    others = [each for each in circuit.waiting if each.until > now and each.coordinator != visit.coordinator]
    own = [WaitingCount(visit.coordinator, visit.waiting, now + WAITING_TERM)] if visit.waiting else []
    return replace(circuit, waiting=(*others, *own))


def _opened(circuit: Circuit, policy: CircuitPolicy, now: Instant) -> Circuit:
    openings = circuit.openings + 1
    return replace(_open(circuit, now), openings=openings, retry_time=now + policy.cool_down_of(openings))


def _open(circuit: Circuit, now: Instant) -> Circuit:
    generation = circuit.generation + 1
    return replace(
        circuit, state=CircuitState.OPEN, generation=generation, permits=(), probes_answered=0, open_time=now
    )


def _closed(circuit: Circuit) -> Circuit:
    return replace(
        circuit,
        state=CircuitState.CLOSED,
        window=OutcomeWindow(circuit.window.slot),
        openings=0,
        permits=(),
        probes_answered=0,
        retry_time=0,
    )
