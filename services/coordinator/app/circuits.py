"""The circuits of targets, as this coordinator sees and feeds them. core/circuits.py has the rules.

    a run ends ─► its outcome is counted here, in memory
    some times a second ─► one visit for each target: outcomes, permits, how much work waits ─► what the row says now
                        ─► once a second the circuits of all others are read as well
                        ─► work that waits is let through: in waves when the circuit is closed, by permits when
                           it is half open

Before a place of a runner is given, and before a grant is sent, `has_open` is asked; while no circuit is open, that is
all that a run costs. A target that answers has no row and is not written about: its outcomes stay here until one fails.

Which outcomes count: those of runs that were granted here after this coordinator had heard of the present generation of
the circuit. So a run that was granted before the circuit opened changes nothing, however late it ends.

Hazards: what was counted and not yet brought is lost with this process, or when the database is away, which does no
harm. A permit is used only after the commit that gave it. It is renewed while the probe is under way here. When another
coordinator takes the execution over, it is forgotten and not returned, because the probe may go on.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.clock import Clock
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import counter, gauge
from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.app.parked_waits import CircuitKey, ParkedWaits
from services.coordinator.app.pending_append import TargetOutcome
from services.coordinator.app.ports import CircuitChange, CircuitStanding, CircuitStore
from services.coordinator.core.circuits import (
    SLOTS,
    WAITING_TERM,
    Circuit,
    CircuitPolicy,
    CircuitState,
    CircuitVisit,
    ProbeOutcome,
    wave,
)
from services.coordinator.core.commands import HeldWork, HoldBack, LetThrough, ReportHeldBack
from services.coordinator.core.state import CircuitHold, Execution, Run, Work, WorkState
from services.coordinator.core.values import SECOND, Instant, Span, WorkKey

log = logger(__name__)

TICK_SECONDS: Final = 0.25
_READ_SECONDS: Final = 1.0
# An execution that waits looks at its circuit at least this often, in case nobody is left to wake it (parked_waits.py).
_LOOK_MAX: Final[Span] = 300 * SECOND
# Circuits that are visited in one transaction.
_VISITS_MAX: Final = 500
# Targets of one workspace whose outcomes are kept in memory.
_TARGETS_MAX: Final = 1_000
# A grant names so many open targets of its module at most. Others are called.
_NAMED_MAX: Final = 100
_CLOSED: Final = CircuitState.CLOSED

_open_circuits = gauge("coordinator_circuits_open", "Circuits that are open or half open, of all workspaces.")
_waiting_work = gauge("coordinator_circuit_waiting", "Pieces of work held here that wait for a circuit.")
_opened = counter("coordinator_circuits_opened_total", "Circuits that opened because of outcomes brought here.")
_probes = counter("coordinator_circuit_probes_total", "Pieces of work that were let through by a permit.")


class _Known(NamedTuple):
    """A circuit as its row said last."""

    state: CircuitState
    generation: int
    # When the target may be probed, by the clock of this process.
    retry_time: Instant
    permits: int
    # Since when this process knows the generation.
    since: Instant


class _Held(NamedTuple):
    """A piece of work of an owned execution that a circuit concerns."""

    owned: OwnedExecution
    execution: Execution
    hold: CircuitHold

    @property
    def circuit(self) -> CircuitKey:
        return self.execution.origin.workspace, self.hold.target

    @property
    def name(self) -> str:
        return permit_name(self.execution, self.hold.work.key)


class _OwnPermit(NamedTuple):
    until: Instant
    held: _Held


@dataclass(slots=True)
class _Tally:
    """Outcomes of one target that were not brought yet: answers and failures by slot."""

    counts: dict[int, list[int]] = field(default_factory=dict)

    def add(self, slot: int, *, has_failed: bool) -> None:
        self.counts.setdefault(slot, [0, 0])[has_failed] += 1
        if len(self.counts) > SLOTS:
            self.counts = {each: count for each, count in self.counts.items() if each > slot - SLOTS}

    def by_age(self, slot: int, kind: int) -> tuple[int, ...]:
        return tuple(self.counts[slot - age][kind] if slot - age in self.counts else 0 for age in range(SLOTS))


def permit_name(execution: Execution, key: WorkKey) -> str:
    """The name of the work, whichever coordinator holds it."""
    return f"{execution.execution_id}/{key.node}/{key.iteration}/{key.generation}"


class Circuits:
    def __init__(
        self,
        *,
        store: CircuitStore,
        executions: OwnedExecutions,
        may_start: Callable[[], bool],
        clock: Clock,
        policy: CircuitPolicy,
        name: str,
        parked: ParkedWaits,
    ) -> None:
        """`may_start`: the leases on the executions are certain."""
        self._parked = parked
        self._may_start = may_start
        self._store = store
        self._executions = executions
        self._clock = clock
        self._policy = policy
        self._name = name
        # Some circuit is open or half open.
        self.has_open = False
        self._known: dict[str, dict[str, _Known]] = {}
        self._tallies: dict[str, OrderedDict[str, _Tally]] = {}
        # Circuits with outcomes that are to be brought.
        self._to_bring: set[CircuitKey] = set()
        self._probe_outcomes: defaultdict[CircuitKey, list[ProbeOutcome]] = defaultdict(list)
        # Executions that have work which waits, or a probe. Ordered, so that who waits longest comes first.
        self._followed: dict[OwnedExecution, None] = {}
        self._permits: defaultdict[CircuitKey, dict[str, _OwnPermit]] = defaultdict(dict)
        # The number of waiting works that was brought last, and when.
        self._told: dict[CircuitKey, tuple[int, Instant]] = {}
        # How many waves have gone on since the circuit closed.
        self._waves: Counter[CircuitKey] = Counter()
        self._read_time = self._renew_time = 0

    # ── before a run is granted ──────────────────────────────────────────────────────────────────────────────────

    def holds(self, execution: Execution, works: Iterable[Work]) -> list[HeldWork]:
        """Those of the works that are not to be given to a runner. Asked only while `has_open`."""
        now = self._now()
        found = [self._hold_of(execution, work, now) for work in works]
        return [each for each in found if each is not None]

    def _hold_of(self, execution: Execution, work: Work, now: Instant) -> HeldWork | None:
        passed = execution.let_through.get(work.key)
        target = work.node.target if passed is None else passed.target
        circuit = execution.origin.workspace, target
        if not target or not self.is_open(circuit):
            return None
        if passed is not None and passed.is_probe:
            permit = self._permits[circuit].get(permit_name(execution, work.key))
            if permit is not None and permit.until > now:
                return None
        return HeldWork(work.key, target, self._look_time(circuit, now))

    def open_names(self, execution: Execution, run: Run) -> Sequence[str]:
        """The targets that the run must not call, as its module names them. Asked only while `has_open`."""
        module = run.work.node.runner_module
        begin = f"{module} "
        own = execution.let_through.get(run.work.key)
        may_call = own.target if own is not None and own.is_probe else ""
        names = [
            target.removeprefix(begin)
            for target, known in self._known.get(execution.origin.workspace, {}).items()
            if target.startswith(begin) and target != may_call and known.state is not _CLOSED
        ]
        return names[:_NAMED_MAX]

    def date(self, owned: OwnedExecution) -> None:
        """Says to reports of runs that were not made when their circuits may let the work through."""
        execution = owned.execution
        assert execution is not None
        now = self._now()
        for command, _ in owned.inbox:
            if isinstance(command, ReportHeldBack) and (run := execution.live.get(command.run)) is not None:
                target = f"{run.work.node.runner_module} {command.target}"
                command.until = self._look_time((execution.origin.workspace, target), now)

    def _look_time(self, circuit: CircuitKey, now: Instant) -> Instant:
        """When work looks at this circuit again. Parked executions wake one after the other."""
        probe_time = self.probe_time(circuit)
        if probe_time <= now:
            return now
        return min(probe_time, now + _LOOK_MAX) + int(random.random() * self._policy.cool_down / 6)

    # ── after a commit ───────────────────────────────────────────────────────────────────────────────────────────

    def note(self, owned: OwnedExecution, outcomes: Iterable[TargetOutcome]) -> None:
        """The outcomes of runs that called something."""
        execution = owned.execution
        assert execution is not None
        workspace = execution.origin.workspace
        for outcome in outcomes:
            circuit = workspace, outcome.target
            if outcome.is_probe:
                name = permit_name(execution, outcome.key)
                self._probe_outcomes[circuit].append(ProbeOutcome(name, not outcome.has_failed))
                continue
            known = self._circuit(circuit)
            is_granted_here = outcome.epoch > owned.adopted_seq
            if is_granted_here and (known is None or outcome.lease_time > known.since):
                self._tally(circuit).add(self._slot(), has_failed=outcome.has_failed)
                if outcome.has_failed or known is not None:
                    self._to_bring.add(circuit)

    def follow(self, owned: OwnedExecution) -> None:
        """Work of the execution waits for a circuit, or was let through."""
        self._followed.setdefault(owned)

    def goes_on(self, execution: Execution) -> bool:
        """A circuit that its work waits for is closed, so this work is let through at the next look. An execution that
        was woken because of that is not parked again."""
        if execution.paused_by is not None or not self._read_time:
            return False
        workspace = execution.origin.workspace
        return any(not self.is_open((workspace, hold.target)) for hold in execution.held_back.values())

    def parked(self, execution: Execution, epoch: int) -> None:
        """The execution leaves, and comes back by itself or when its circuit closes. Until then its work is still
        counted as waiting."""
        if execution.held_back:
            self._parked.add(execution, epoch)

    # ── some times a second ──────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        while True:
            await self._clock.sleep(TICK_SECONDS)
            try:
                await self.tick()
            except DependencyUnavailable as failure:
                log.warning("circuits could not be looked at", error=str(failure))

    async def tick(self) -> None:
        now = self._now()
        # Without a dispatcher nothing here is given to a runner, and another coordinator may have the executions. If
        # this one asked for permits all the same, or renewed them, nobody could probe the target.
        held = list(self._held()) if self._may_start() else []
        waiting: defaultdict[CircuitKey, list[_Held]] = defaultdict(list)
        for each in held:
            if each.hold.work.state is WorkState.HELD_BACK:
                waiting[each.circuit].append(each)
        _waiting_work.set(sum(map(len, waiting.values())))
        visits = self._visits(waiting, held, now)
        await self._bring(visits, held, now)
        if visits or now >= self._read_time:
            self._see(await self._store.standings(), self._now())
            self._read_time = now + int(_READ_SECONDS * SECOND)
        self._go_on(waiting, self._now())

    async def _bring(self, visits: Sequence[CircuitVisit], held: Sequence[_Held], now: Instant) -> None:
        for begin in range(0, len(visits), _VISITS_MAX):
            try:
                changes = await self._store.visit(visits[begin : begin + _VISITS_MAX])
            except DependencyUnavailable:
                # A probe gives up its permit with its outcome, so bringing it twice does no harm.
                for each in visits[begin:]:
                    if each.probes:
                        self._probe_outcomes[each.workspace, each.target][:0] = each.probes
                raise
            self._learn(changes, held, now)

    def _held(self) -> Iterator[_Held]:
        """All work that waits or is a probe. Executions without any are followed no longer."""
        for owned in list(self._followed):
            execution = owned.execution
            if owned.is_dropped or execution is None:
                del self._followed[owned]
                continue
            holds = [*execution.held_back.values(), *execution.let_through.values()]
            wanting = [hold for hold in holds if _wants_call(execution, hold)]
            if not wanting:
                del self._followed[owned]
            for hold in wanting:
                yield _Held(owned, execution, hold)

    def _visits(
        self, waiting: Mapping[CircuitKey, list[_Held]], held: Sequence[_Held], now: Instant
    ) -> list[CircuitVisit]:
        renews = self._renewals(held, now)
        returns = self._returned(now)
        counts = self._counts(waiting, now)
        circuits = {*self._to_bring, *self._probe_outcomes, *renews, *returns, *counts}
        circuits.update(circuit for circuit in waiting if self._may_ask(circuit, now))
        self._to_bring.clear()
        return [
            self._visit(circuit, waiting.get(circuit, ()), renews.get(circuit, ()), returns.get(circuit, ()), now)
            for circuit in circuits
        ]

    def _visit(
        self, circuit: CircuitKey, waiting: Sequence[_Held], renews: Sequence[str], returns: Sequence[str], now: Instant
    ) -> CircuitVisit:
        workspace, target = circuit
        tally = self._tallies[workspace].pop(target, None) if workspace in self._tallies else None
        tally = tally or _Tally()
        slot, known = self._slot(), self._circuit(circuit)
        asks = [each.name for each in waiting[: self._policy.permits_max]] if self._may_ask(circuit, now) else []
        count = len(waiting) + self._parked.works_at(circuit, now)
        self._told[circuit] = (count, now)
        return CircuitVisit(
            workspace,
            target,
            self._name,
            generation=0 if known is None else known.generation,
            answers=tally.by_age(slot, 0),
            failures=tally.by_age(slot, 1),
            probes=tuple(self._probe_outcomes.pop(circuit, ())),
            asks=tuple(asks),
            renews=tuple(renews),
            returns=tuple(returns),
            waiting=count,
        )

    def _may_ask(self, circuit: CircuitKey, now: Instant) -> bool:
        known = self._circuit(circuit)
        if known is None or known.state is _CLOSED:
            return False
        if known.state is CircuitState.OPEN:
            return known.retry_time <= now
        return known.permits < self._policy.permits_max

    def _renewals(self, held: Sequence[_Held], now: Instant) -> Mapping[CircuitKey, list[str]]:
        """The probes that are under way, several times in the term of a permit."""
        found: defaultdict[CircuitKey, list[str]] = defaultdict(list)
        if now >= self._renew_time:
            self._renew_time = now + self._policy.permit_term // 6
            for each in held:
                if each.hold.is_probe:
                    found[each.circuit].append(each.name)
        return found

    def _returned(self, now: Instant) -> Mapping[CircuitKey, list[str]]:
        """Permits that are not needed any more, because their work was cancelled or called something else."""
        found: defaultdict[CircuitKey, list[str]] = defaultdict(list)
        for circuit, permits in list(self._permits.items()):
            for name, (until, held) in list(permits.items()):
                execution, key = held.execution, held.hold.work.key
                has_moved = held.owned.is_dropped and not execution.is_final
                hold = execution.held_back.get(key) or execution.let_through.get(key)
                if hold is not None and _wants_call(execution, hold):
                    if not has_moved and until > now:
                        continue
                elif not has_moved:
                    found[circuit].append(name)
                del permits[name]
            if not permits:
                del self._permits[circuit]
        return found

    def _counts(self, waiting: Mapping[CircuitKey, list[_Held]], now: Instant) -> list[CircuitKey]:
        """The circuits whose rows are to be told how much work waits: it has changed, or is soon forgotten."""
        found = []
        for circuit in {*waiting, *self._parked.circuits(), *self._told}:
            count = len(waiting.get(circuit, ())) + self._parked.works_at(circuit, now)
            told, since = self._told.get(circuit, (0, 0))
            if not count and not told:
                self._told.pop(circuit, None)
            elif self._circuit(circuit) is not None and (count != told or now - since > WAITING_TERM // 3):
                found.append(circuit)
        return found

    def _learn(self, changes: Sequence[CircuitChange], held: Sequence[_Held], now: Instant) -> None:
        """The visits, which began at `now`, are committed."""
        by_name = {each.name: each for each in held}
        for before, after, at in changes:
            _tell_of(before, after)
            circuit = after.workspace, after.target
            for name, until in after.permits:
                # By the clock of this process it began before the visit, and so it ends earlier than in the row.
                if name in by_name and until - at == self._policy.permit_term:
                    self._permits[circuit][name] = _OwnPermit(now + self._policy.permit_term, by_name[name])

    def _see(self, standings: Sequence[CircuitStanding], now: Instant) -> None:
        seen: defaultdict[str, dict[str, _Known]] = defaultdict(dict)
        open_count = 0
        for workspace, target, state, generation, permits, retry_seconds in standings:
            known = self._circuit((workspace, target))
            # A circuit begins with generation 0, and its first outcomes are those that made it.
            since, present = (0, 0) if known is None else (known.since, known.generation)
            if generation != present:
                # What was counted and permitted before is of an earlier opening.
                since = now
                self._tallies.get(workspace, OrderedDict()).pop(target, None)
                self._permits.pop((workspace, target), None)
            retry_time = now + int(retry_seconds * SECOND)
            seen[workspace][target] = _Known(CircuitState(state), generation, retry_time, permits, since)
            open_count += state != _CLOSED
        self._known = dict(seen)
        self._forget_old_tallies()
        self.has_open = open_count > 0
        _open_circuits.set(open_count)

    def _go_on(self, waiting: Mapping[CircuitKey, list[_Held]], now: Instant) -> None:
        for circuit in [each for each in self._waves if each not in waiting]:
            del self._waves[circuit]
        for circuit, held in waiting.items():
            if self.is_open(circuit):
                del self._waves[circuit]
                self._let_probes_through(circuit, held, now)
                self._wait_on(circuit, held, now)
            else:
                self._let(held[: wave(self._waves[circuit])], is_probe=False)
                self._waves[circuit] += 1

    def _let_probes_through(self, circuit: CircuitKey, held: Sequence[_Held], now: Instant) -> None:
        permits = self._permits.get(circuit, {})
        probes = [each for each in held if (own := permits.get(each.name)) is not None and own.until > now]
        _probes.inc(len(probes))
        self._let(probes, is_probe=True)

    def _let(self, held: Iterable[_Held], *, is_probe: bool) -> None:
        keys: defaultdict[OwnedExecution, list[WorkKey]] = defaultdict(list)
        for each in held:
            keys[each.owned].append(each.hold.work.key)
        for owned, its_keys in keys.items():
            self._executions.put(owned, LetThrough(its_keys, is_probe))

    def _wait_on(self, circuit: CircuitKey, held: Sequence[_Held], now: Instant) -> None:
        """The circuit has opened again: the work waits until its next probe, and its execution may be parked."""
        if self.probe_time(circuit) <= now:
            return
        works: defaultdict[OwnedExecution, list[HeldWork]] = defaultdict(list)
        for each in held:
            if each.hold.until <= now and each.execution.only_waits:
                held_work = HeldWork(each.hold.work.key, each.hold.target, self._look_time(circuit, now))
                works[each.owned].append(held_work)
        for owned, its_works in works.items():
            self._executions.put(owned, HoldBack(its_works))

    # ── small answers ────────────────────────────────────────────────────────────────────────────────────────────

    def _circuit(self, circuit: CircuitKey) -> _Known | None:
        workspace, target = circuit
        return self._known.get(workspace, {}).get(target)

    def is_open(self, circuit: CircuitKey) -> bool:
        known = self._circuit(circuit)
        return known is not None and known.state is not _CLOSED

    def probe_time(self, circuit: CircuitKey) -> Instant:
        """When the target of an open circuit may be probed. 0: the circuit is closed, or the target is being probed."""
        known = self._circuit(circuit)
        return known.retry_time if known is not None and known.state is CircuitState.OPEN else 0

    def _tally(self, circuit: CircuitKey) -> _Tally:
        workspace, target = circuit
        tallies = self._tallies.setdefault(workspace, OrderedDict())
        tally = tallies.setdefault(target, _Tally())
        tallies.move_to_end(target)
        if len(tallies) > _TARGETS_MAX:
            tallies.popitem(last=False)
        return tally

    def _forget_old_tallies(self) -> None:
        """Those whose outcomes are all too old. The targets are in the order of their last calls."""
        oldest = self._slot() - SLOTS
        for workspace, tallies in list(self._tallies.items()):
            while tallies and max(next(iter(tallies.values())).counts) <= oldest:
                tallies.popitem(last=False)
            if not tallies:
                del self._tallies[workspace]

    def _slot(self) -> int:
        return self._now() // self._policy.slot

    def _now(self) -> Instant:
        return self._clock.epoch_ns() // 1_000


def _wants_call(execution: Execution, hold: CircuitHold) -> bool:
    """The work waits for the circuit, or it was let through with a permit, and its attempt is not over. While its
    execution is paused, work that no runner has takes no permit from others."""
    state = hold.work.state
    if state is WorkState.LIVE:
        return hold.is_probe
    is_next = state is WorkState.HELD_BACK or (state is WorkState.READY and hold.is_probe)
    return is_next and execution.paused_by is None


def _tell_of(before: Circuit, after: Circuit) -> None:
    if before.state is after.state:
        return
    ids = {"workspace": after.workspace, "target": after.target, "generation": after.generation}
    if after.state is CircuitState.OPEN:
        _opened.inc()
        failures, answers = sum(after.window.failures), sum(after.window.answers)
        log.warning("a circuit is open: its target fails", **ids, failures=failures, answers=answers)
    elif after.state is _CLOSED:
        log.info("a circuit is closed: its target answers again", **ids)
    else:
        log.info("a circuit is half open: its target is probed", **ids)
