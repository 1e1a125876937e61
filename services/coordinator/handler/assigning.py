"""Which ready work goes to which runner: first come first served among executions, round robin among runners.

Executions wait in one queue per requirement (workspace, module, labels), so that a turn looks only at work that
somebody can take. An execution is given a few works at a time and goes to the end of its queue: a fan-out of a
thousand does not hold up the single step behind it. Waiting costs no attempt.

Credit is reserved before the append and becomes a grant after it; what the append does not confirm is given back.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from services.coordinator.core.definition import Node
from services.coordinator.core.state import Work
from services.coordinator.core.values import Instant
from services.coordinator.handler.held import Held
from services.coordinator.handler.ports import Requirement, Runners, RunnerSession

# Works of one execution given out before the next execution has its turn.
_SHARE: Final = 64
# Appends grow with what is given out in one turn.
_GIVEN_MAX: Final = 1_000


class Given(NamedTuple):
    work: Work
    session: RunnerSession
    # When its execution began to wait for such a runner.
    since: Instant


class Assigner:
    def __init__(self, runners: Runners) -> None:
        self._runners = runners
        self._queues: dict[Requirement, OrderedDict[Held, Instant]] = {}

    @property
    def waiting(self) -> int:
        """Works that wait for a runner, about: what holders divide their credit by."""
        return sum(
            len(held.execution.ready)
            for queue in self._queues.values()
            for held in queue
            if held.execution is not None
        )

    @property
    def is_idle(self) -> bool:
        return not self._queues

    def enter(self, held: Held, now: Instant) -> None:
        """Queue it for what it has ready; where it stands already it keeps its place."""
        execution = held.execution
        assert execution is not None
        workspace = execution.workspace
        if len(execution.ready) == 1:
            self._enter(Requirement(workspace, *_needs(next(iter(execution.ready)).node)), held, now)
            return
        for needs in {_needs(work.node) for work in execution.ready}:
            self._enter(Requirement(workspace, *needs), held, now)

    def _enter(self, requirement: Requirement, held: Held, now: Instant) -> None:
        queue = self._queues.get(requirement)
        if queue is None:
            queue = self._queues[requirement] = OrderedDict()
        queue.setdefault(held, now)

    def give(self) -> dict[Held, list[Given]]:
        """Reserve a runner's place for as much ready work as there is credit for."""
        given: dict[Held, list[Given]] = {}
        left = _GIVEN_MAX
        for requirement in list(self._queues):
            queue = self._queues[requirement]
            places = _places(self._runners.with_credit_for(requirement))
            before, left = left, _serve(queue, requirement, places, given, left)
            if not queue:
                del self._queues[requirement]
            elif left < before:
                # Who was served goes behind those who were not.
                self._queues[requirement] = self._queues.pop(requirement)
        # What credit remains wanted: the level by which holders divide theirs.
        self._runners.set_demand(self.waiting)
        return given


def _serve(
    queue: OrderedDict[Held, Instant],
    requirement: Requirement,
    places: Iterator[RunnerSession],
    given: dict[Held, list[Given]],
    left: int,
) -> int:
    while queue and left > 0:
        held, since = next(iter(queue.items()))
        taken = {each.work for each in given.get(held, ())}
        works = _wanting(held, requirement, taken, min(_SHARE, left) + 1)
        share = works[: min(_SHARE, left)]
        got = [Given(work, session, since) for work, session in zip(share, places, strict=False)]
        if got:
            left -= len(got)
            given.setdefault(held, []).extend(got)
        if len(got) < len(share):
            return left  # no credit left; it keeps its place
        del queue[held]
        if len(works) > len(share):
            queue[held] = since
    return left


def _wanting(held: Held, requirement: Requirement, taken: set[Work], limit: int) -> list[Work]:
    if held.is_dropped or held.execution is None:
        return []
    needs = (requirement.module, requirement.labels)
    wanting = (work for work in held.execution.ready if _needs(work.node) == needs and work not in taken)
    return list(itertools.islice(wanting, limit))


def _needs(node: Node) -> tuple[str, tuple[tuple[str, str], ...]]:
    return node.runner_module, node.runner_labels


def _places(sessions: list[RunnerSession]) -> Iterator[RunnerSession]:
    """One reserved place after another, round robin, until none is left."""
    while sessions:
        free = []
        for session in sessions:
            if session.take_credit(1):
                free.append(session)
                yield session
        sessions = free
