"""Assigns ready work to runners: first come, first served among executions, round robin among runners.

Executions wait in one queue per requirement (workspace, module, labels), so that a batch looks only at work that a
runner can take. An execution is given a limited share of places at a time and then goes to the end of its queue, so a
fan-out of a thousand does not hold up the single step behind it. Waiting costs no attempt.

An execution that has just finished a step goes first, unless another has waited for long. The finished step has left
its place free in the same batch, so its result and the next lease become one append instead of two, and executions end
one after another instead of all at the end.

Credit is reserved before the append and becomes a grant after it. Credit for an append that fails is given back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Set
from typing import Final, NamedTuple, TypeAlias

from services.chassis.session.registry import SessionRegistry
from services.chassis.session.server import ServerSession
from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.app.runner_scope import Requirement
from services.coordinator.core.state import Work
from services.coordinator.core.values import Instant
from windlass.definition.modules import RENDERER

# Works of one execution that are assigned before the next execution is served.
_SHARE: Final = 64
# Microseconds. An execution that has waited this long goes before those that have just finished a step.
_PATIENCE: Final = 5_000_000
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


_NONE: Final[Set[Work]] = frozenset()
Queue: TypeAlias = "OrderedDict[OwnedExecution, Instant]"


class Assigner:
    def __init__(self, runners: SessionRegistry) -> None:
        self._runners = runners
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
        return sum(
            len(owned.execution.ready)
            for queue in self._queues.values()
            for owned in queue
            if owned.execution is not None
        )

    @property
    def is_idle(self) -> bool:
        return not self._queues and not self._following

    def enter(self, owned: OwnedExecution, now: Instant, *, is_following: bool = False) -> None:
        """Queues the execution for its ready work. In a queue that it is in already, it keeps its place."""
        execution = owned.execution
        assert execution is not None
        workspace = execution.origin.workspace
        if len(execution.ready) == 1:
            needs = _needs(next(iter(execution.ready)))
            self._enter(Requirement(workspace, *needs), owned, now, is_following)
            return
        for needs in {_needs(work) for work in execution.ready}:
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
        left = _GIVEN_MAX
        served: dict[Requirement, Queue] = {}
        passed_over: dict[Requirement, Queue] = {}
        for requirement in {**self._queues, **self._following}:
            queue, count = self._give(requirement, given, left, now)
            left -= count
            if queue:
                (served if count else passed_over)[requirement] = queue
        # Queues that were served go behind those that were not.
        self._queues, self._following = {**passed_over, **served}, {}
        self._runners.set_demand(self.waiting)
        return given

    def _give(
        self, requirement: Requirement, given: dict[OwnedExecution, list[Assignment]], left: int, now: Instant
    ) -> tuple[Queue, int]:
        """Returns the executions that wait on, and how many works were assigned."""
        queue = self._queues.get(requirement) or OrderedDict()
        following = self._following.get(requirement) or OrderedDict()
        free = self._runners.with_credit()
        fitting = [each for each in free if each.data.fits(requirement)]
        is_rendering = not fitting and self._needs_renderer(requirement)
        if is_rendering:
            renderer = Requirement(requirement.workspace, RENDERER, (), is_templated=True)
            fitting = [each for each in free if each.data.fits(renderer)]
        places = _places(fitting)
        has_waited = bool(queue) and now - next(iter(queue.values())) > _PATIENCE
        before = left
        for each in (queue, following) if has_waited else (following, queue):
            left = _serve(each, requirement, places, given, left, is_rendering=is_rendering)
        queue.update(following)
        return queue, before - left

    def _needs_renderer(self, requirement: Requirement) -> bool:
        """A runner that does not render could do the work if it had no templates."""
        if not requirement.is_templated:
            return False
        plain = requirement._replace(is_templated=False)
        return any(each.data.wants_rendered and each.data.fits(plain) for each in self._runners.sessions)


def _serve(
    queue: Queue,
    requirement: Requirement,
    places: Iterator[ServerSession],
    given: dict[OwnedExecution, list[Assignment]],
    left: int,
    *,
    is_rendering: bool,
) -> int:
    while queue and left > 0:
        owned, since = next(iter(queue.items()))
        # An execution that waits in several queues may have been served from another one.
        taken = {each.work for each in given[owned]} if owned in given else _NONE
        room = min(_SHARE, left)
        works = _wanting(owned, requirement, taken, room + 1)
        share = works[:room]
        got = [Assignment(work, session, since, is_rendering) for work, session in zip(share, places, strict=False)]
        if got:
            left -= len(got)
            given.setdefault(owned, []).extend(got)
        if len(got) < len(share):
            return left  # no credit is left, and the execution keeps its place
        del queue[owned]
        if len(works) > len(share):
            queue[owned] = since
    return left


def _wanting(owned: OwnedExecution, requirement: Requirement, taken: Set[Work], limit: int) -> list[Work]:
    if owned.is_dropped or owned.execution is None:
        return []
    needs = requirement[1:]
    wanting: list[Work] = []
    for work in owned.execution.ready:
        if _needs(work) == needs and work not in taken:
            wanting.append(work)
            if len(wanting) == limit:
                break
    return wanting


def _needs(work: Work) -> tuple[str, tuple[tuple[str, str], ...], bool]:
    return work.node.runner_module, work.node.runner_labels, work.is_templated


def _places(sessions: list[ServerSession]) -> Iterator[ServerSession]:
    """Reserves one place after another, round robin, until none is left."""
    while sessions:
        free = []
        for session in sessions:
            if session.take_credit(1):
                free.append(session)
                yield session
        sessions = free
