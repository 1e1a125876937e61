"""Assigns ready work to runners: first come, first served among executions, fair shares among workspaces.

Executions wait in one queue per requirement (workspace, module, labels), so that a batch looks only at work that a
runner can take. An execution is given a limited share of places at a time and then goes to the end of its queue, so a
fan-out of a thousand does not hold up the single step behind it. Waiting costs no attempt.

An execution that has just finished a step goes first, unless another has waited for long. The finished step has left
its place free in the same batch, so its result and the next lease become one append instead of two, and executions end
one after another instead of all at the end.

Each place of a runner goes to the workspace that holds the fewest places there for its weight, and among equals to the
one that has used runners least in the last seconds. Running work is not taken back, so some places of every runner are
a reserve: they go only to workspaces that hold none there and have used runners little in the last seconds. Half of
the reserve is for runs that will be short, as the workspace's last one of that module was. So fifty workspaces that
each begin a long run do not take all of it.

Work that a runner has handed back is not granted to that runner for a while (core/retry.py), but to any other. Work
that a runner has died with goes to any other that has credit.

Credit is reserved before the append and becomes a grant after it. Credit for an append that fails is given back.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import Final, NamedTuple, TypeAlias

from services.chassis.session.registry import SessionRegistry
from services.chassis.session.server import ServerSession
from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.app.runner_places import RunnerPlaces
from services.coordinator.app.runner_scope import Requirement
from services.coordinator.core.definition import RunnerNeeds
from services.coordinator.core.state import Work
from services.coordinator.core.values import Instant
from windlass.definition.modules import RENDERER

# Works of one execution that are assigned before the next execution is served.
_SHARE: Final = 64
# Microseconds. An execution that has waited this long goes before those that have just finished a step.
_PATIENCE: Final = 5_000_000
# µs. Beyond this use of runners in the last seconds, a workspace waits for a place that is no reserve.
_LIGHT: Final = 1_000_000
# When this number of executions waits, their works need not be counted.
_COUNTED_MAX: Final = 200
# Works assigned in one batch. The append grows with them.
_GIVEN_MAX: Final = 1_000


class Assignment(NamedTuple):
    work: Work
    session: ServerSession
    # The time at which the execution began to wait for such a runner.
    since: Instant
    # The runner only renders the work, for one that does not render.
    is_rendering: bool = False


class _Waiting(NamedTuple):
    owned: OwnedExecution
    work: Work
    since: Instant
    is_rendering: bool


@dataclass(slots=True, eq=False)
class _Share:
    """What a runner may take of a line."""

    line: _Line
    # The number of its works that count as quick.
    quick: int = 0
    # It will probably be short.
    is_short: bool = False


@dataclass(slots=True, eq=False)
class _Claimant:
    """A workspace that waits for places of one runner."""

    # The load of one place: less for a workspace with more weight.
    of_one: float
    shares: list[_Share]


# Load, use of runners lately, place in the order of service, which no other has. Every grant makes one, so it is plain.
_Turn: TypeAlias = tuple[float, float, int, _Claimant]
Queue: TypeAlias = "OrderedDict[OwnedExecution, Instant]"


class Assigner:
    def __init__(self, runners: SessionRegistry, places: RunnerPlaces) -> None:
        self._runners = runners
        self._places = places
        # The executions that wait, and since when.
        self._queues: dict[Requirement, Queue] = {}
        # The executions that have finished a step in this batch.
        self._following: dict[Requirement, Queue] = {}

    @property
    def waiting(self) -> int:
        """The rough number of works that wait for a runner. Runners divide their credit between coordinators by it."""
        executions = sum(map(len, self._queues.values()))
        if executions >= _COUNTED_MAX:
            return executions
        works = 0
        for queue in self._queues.values():
            for owned in queue:
                works += len(owned.execution.ready) if owned.execution is not None else 0
        return works

    @property
    def is_idle(self) -> bool:
        return not self._queues and not self._following

    def enter(self, owned: OwnedExecution, now: Instant, *, is_following: bool = False) -> None:
        """Queues the execution for its ready work. In a queue that it is in already, it keeps its place."""
        execution = owned.execution
        assert execution is not None
        workspace = execution.origin.workspace
        if len(execution.ready) == 1:
            (work,) = execution.ready
            self._enter(Requirement(workspace, *_needs(work)), owned, now, is_following)
            return
        for needs in dict.fromkeys(map(_needs, execution.ready)):
            self._enter(Requirement(workspace, *needs), owned, now, is_following)

    def _enter(self, requirement: Requirement, owned: OwnedExecution, now: Instant, is_following: bool) -> None:
        queue = self._queues.get(requirement)
        if queue is not None and owned in queue:
            return
        queues = self._following if is_following else self._queues
        queues.setdefault(requirement, OrderedDict()).setdefault(owned, now)

    def give(self, now: Instant) -> dict[OwnedExecution, list[Assignment]]:
        """Reserves runners' places for as much ready work as there is credit for."""
        given: dict[OwnedExecution, list[Assignment]] = {}
        lines = [self._line(requirement, now) for requirement in {**self._queues, **self._following}]
        offered = rooms = [_Room(session, self._places, lines, now) for session in self._runners.with_credit()]
        left = _GIVEN_MAX
        while rooms and left > 0:
            # Round robin, so that work is spread over the runners.
            going_on = []
            for room in rooms:
                if left > 0 and (waiting := room.take(now)) is not None:
                    assignment = Assignment(waiting.work, room.session, waiting.since, waiting.is_rendering)
                    given.setdefault(waiting.owned, []).append(assignment)
                    going_on.append(room)
                    left -= 1
            rooms = going_on
        # Queues that were served go behind those that were not.
        lines.sort(key=lambda line: line.has_served)
        self._queues = {line.requirement: queue for line in lines if (queue := line.rest())}
        self._following = {}
        self._state_demand(offered)
        return given

    def _state_demand(self, offered: Sequence[_Room]) -> None:
        """A runner leaves a coordinator as much credit as it demands. What is kept as a reserve serves no work that
        waits, so it is demanded besides."""
        waiting = self.waiting
        self._runners.set_demand(waiting)
        if waiting:
            for room in offered:
                room.session.set_demand(waiting + room.reserve)

    def _line(self, requirement: Requirement, now: Instant) -> _Line:
        queue = self._queues.get(requirement) or OrderedDict()
        following = self._following.get(requirement) or OrderedDict()
        has_waited = bool(queue) and now - next(iter(queue.values())) > _PATIENCE
        return _Line(
            requirement, queue, following, is_in_turn=has_waited, is_rendering=self._is_rendered_first(requirement)
        )

    def _is_rendered_first(self, requirement: Requirement) -> bool:
        """A runner that does not render could do the work if it had no templates, and no other one is free."""
        if not requirement.is_templated or requirement.has_until:
            return False
        if any(each.data.fits(requirement) for each in self._runners.with_credit()):
            return False
        plain = requirement._replace(is_templated=False)
        return any(each.data.wants_rendered and each.data.fits(plain) for each in self._runners.sessions)


class _Line:
    """The work that has one requirement, in the order in which it is served."""

    def __init__(
        self, requirement: Requirement, queue: Queue, following: Queue, *, is_in_turn: bool, is_rendering: bool
    ) -> None:
        self.requirement = requirement
        # What a runner needs that is granted this work now.
        self.granted_by = requirement
        if is_rendering:
            self.granted_by = Requirement(requirement.workspace, RENDERER, (), is_templated=True)
        self.has_served = False
        # The runners with credit that can serve it.
        self.runners = 0
        self._queue = queue
        self._following = following
        # Works that were passed over, because a runner that came to them may not have them yet. None: another took it.
        self._barred: list[_Waiting | None] = []
        # How many of them each runner has come to.
        self._seen: dict[str, int] = {}
        in_turn = (queue, following) if is_in_turn else (following, queue)
        self._works = _in_order(requirement, in_turn, is_rendering=is_rendering)
        self._next = next(self._works, None)

    def take(self, session: ServerSession, now: Instant) -> _Waiting | None:
        """The next work that this runner may have."""
        if self._barred and (found := self._take_barred(session, now)) is not None:
            return found
        while (found := self._next) is not None:
            self._next = next(self._works, None)
            work = found.work
            # Nearly all work is granted for the first time, to whoever comes.
            if (work.run is None and not work.barred) or self._may_have(session, work, now):
                self.has_served = True
                return found
            self._barred.append(found)
            self._seen[session.instance_id] = len(self._barred)
        return None

    def _may_have(self, session: ServerSession, work: Work, now: Instant) -> bool:
        if work.barred and work.is_barred(session.instance_id, now):
            return False
        return self.runners == 1 or work.run is None or not work.has_died_with(session.attach.holder, now)

    def _take_barred(self, session: ServerSession, now: Instant) -> _Waiting | None:
        for place in range(self._seen.get(session.instance_id, 0), len(self._barred)):
            self._seen[session.instance_id] = place + 1
            found = self._barred[place]
            if found is not None and self._may_have(session, found.work, now):
                self._barred[place] = None
                self.has_served = True
                return found
        return None

    @property
    def weight(self) -> int:
        """That of its workspace."""
        execution = None if self._next is None else self._next.owned.execution
        return (execution is not None and execution.origin.runner_weight) or 1

    def rest(self) -> Queue:
        """The executions that wait on."""
        rest: Queue = OrderedDict([(each.owned, each.since) for each in self._barred if each is not None])
        rest.update(self._queue)
        rest.update(self._following)
        return rest


class _Room:
    """The places that one runner has free, while a batch shares them out."""

    def __init__(self, session: ServerSession, places: RunnerPlaces, lines: Sequence[_Line], now: Instant) -> None:
        self.session = session
        self._credit = session.credit
        uses = places.at(session.instance_id)
        held: Counter[str] = Counter()
        slow = 0
        for (workspace, _), use in uses.items():
            held[workspace] += use.held
            slow += max(0, use.held - use.ended_lately(now))
        # The other places are in the hands of other coordinators. The credit may be for more than there are places.
        own = min(self._credit + held.total(), session.attach.capacity)
        self.reserve = session.data.reserved(own)
        # How much slow work may still be granted. Workspaces that hold nothing may have half of the reserve besides.
        self._slow_room = own - self.reserve - slow
        claimants: dict[str, _Claimant] = {}
        # A heap of workspaces by their load.
        self._turns: list[_Turn] = []
        for number, line in enumerate(lines):
            workspace, module = line.requirement.workspace, line.requirement.module
            if session.data.fits(line.granted_by):
                line.runners += 1
                if workspace not in claimants:
                    claimant = claimants[workspace] = _Claimant(1 / line.weight, [])
                    load, spent = held[workspace] / line.weight, places.spent(workspace, now) / line.weight
                    self._turns.append((load, spent, number, claimant))
                share = _Share(line)
                if known := uses.get((workspace, module)):
                    share.quick, share.is_short = known.ended_lately(now) - known.held, known.is_short
                claimants[workspace].shares.append(share)
        heapify(self._turns)

    def take(self, now: Instant) -> _Waiting | None:
        """The work that gets the next place. None: nobody is given one any more."""
        turns = self._turns
        while self._credit > 0 and turns:
            load, spent, number, claimant = turns[0]
            may_use_reserve = not load and spent <= _LIGHT
            if self._credit <= self.reserve and not may_use_reserve:
                return None
            found = self._next_of(claimant.shares, now, may_use_reserve=may_use_reserve)
            if found is None:
                heappop(turns)
                continue
            self.session.take_credit(1)
            self._credit -= 1
            heapreplace(turns, (load + claimant.of_one, spent, number, claimant))
            return found
        return None

    def _next_of(self, shares: list[_Share], now: Instant, *, may_use_reserve: bool) -> _Waiting | None:
        slow_room = self._slow_room + (self.reserve - self.reserve // 2 if may_use_reserve else 0)
        while shares:
            share = shares[0]
            if share.quick > 0 or slow_room > 0 or (may_use_reserve and share.is_short):
                found = share.line.take(self.session, now)
                if found is not None:
                    self._slow_room -= share.quick <= 0
                    share.quick -= 1
                    return found
            del shares[0]
        return None


def _in_order(requirement: Requirement, queues: Sequence[Queue], *, is_rendering: bool) -> Iterator[_Waiting]:
    """An execution leaves its queue when all its works were yielded.

    This belongs to no line, because a line that its own generator refers to would be left to the garbage collector."""
    for queue in queues:
        begun: dict[OwnedExecution, Iterator[Work]] = {}
        while queue:
            owned, since = next(iter(queue.items()))
            works = begun.pop(owned, None) or _wanting(owned, requirement)
            for count, work in enumerate(works, 1):
                yield _Waiting(owned, work, since, is_rendering)
                if count == _SHARE:
                    begun[owned] = works
                    queue.move_to_end(owned)
                    break
            else:
                del queue[owned]


def _wanting(owned: OwnedExecution, requirement: Requirement) -> Iterator[Work]:
    if owned.is_dropped or owned.execution is None or owned.execution.paused_by is not None:
        return iter(())
    ready, needs = owned.execution.ready, requirement[1:]
    if len(ready) == 1:
        # So it is with most steps, and a generator costs more than they do.
        (work,) = ready
        return iter((work,) if _needs(work) == needs else ())
    return (work for work in ready if _needs(work) == needs)


def _needs(work: Work) -> RunnerNeeds:
    needs = work.node.runner_needs
    return needs if work.rendered is None else needs._replace(is_templated=work.is_templated)
