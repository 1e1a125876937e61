"""How the workspaces use each runner: the places that they hold, and how fast they give them back.

A place is held by a live run of an execution that is owned here. Runs that other coordinators have granted are not
seen: the runner divides its credit among its coordinators, and each of them shares out what it is given.

A runner asks for more runs than it has places when runs have just ended (services/runner/core/window.py), so that it
need not wait for the next ones. That is meant for modules whose runs are short: the runs of a workspace at a module
count as slow as far as they hold more places than short ones have given back in the last moments.

Among workspaces that hold equally many places, the one goes first that has used runners least in the last seconds. So
one that needs a place now and then does not queue behind fifty that always need some.

Hazard: whoever changes the live runs of an execution calls `follow` with the numbers of those runs, and whoever forgets
the execution calls `forget`. Otherwise the places of a run that is over stay held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.core.state import Run
from services.coordinator.core.values import SECOND, Instant, Span

# The last moments are the present slot and the one before it: at least as long as the runner looks back.
_SLOT: Final[Span] = 50_000
# A run that takes longer loses little while its runner waits for the next one (SPAN_SECONDS of the runner's window).
_SHORT: Final[Span] = 50_000
# After this time, half of the use of runners is forgotten.
_HALF_LIFE: Final[Span] = 10 * SECOND
# More is not remembered, so that after an hour-long run a workspace counts as light again within a minute.
_SPENT_MAX: Final[Span] = 60 * SECOND
# Beyond this number, entries that hold nothing are forgotten.
_IDLE_MAX: Final = 100


class Use:
    """The use that one workspace makes of one runner with one module."""

    __slots__ = ("_ended", "_ended_before", "_slot", "held", "is_short")

    def __init__(self) -> None:
        self.held = 0
        # The last run was short.
        self.is_short = False
        self._slot = self._ended = self._ended_before = 0

    def end_one(self, now: Instant, *, is_short: bool) -> None:
        self.held -= 1
        self.is_short = is_short
        if is_short:
            if now // _SLOT != self._slot:
                self._turn_to(now)
            self._ended += 1

    def ended_lately(self, now: Instant) -> int:
        """How many short runs have ended."""
        if now // _SLOT != self._slot:
            self._turn_to(now)
        return self._ended + self._ended_before

    def _turn_to(self, now: Instant) -> None:
        slot = now // _SLOT
        self._ended_before = self._ended if slot == self._slot + 1 else 0
        self._slot, self._ended = slot, 0


# The use of one runner, by workspace and module.
Uses = Mapping[tuple[str, str], Use]
_NOBODY: Final[Uses] = MappingProxyType({})


class RunnerPlaces:
    def __init__(self) -> None:
        # The uses of each runner, by its instance.
        self._uses: dict[str, dict[tuple[str, str], Use]] = {}
        # How long runs of each workspace have held places, all runners together, and when that was.
        self._spent: dict[str, tuple[float, Instant]] = {}
        self._spent_max = _IDLE_MAX

    def at(self, instance_id: str) -> Uses:
        """The use that is made of this runner."""
        return self._uses.get(instance_id, _NOBODY)

    def follow(self, owned: OwnedExecution, numbers: Iterable[int], now: Instant) -> None:
        """These runs have begun or ended, or something else has happened to them."""
        execution, places = owned.execution, owned.places
        assert execution is not None
        live = execution.live
        for number in numbers:
            run = live.get(number)
            if run is None:
                if number in places:
                    ended = execution.runs[number - 1]
                    took = _time_taken(ended, now)
                    # A later attempt may have done only what was left.
                    places.pop(number).end_one(now, is_short=took < _SHORT and ended.attempt <= 1)
                    self._spend(execution.origin.workspace, took, now)
            elif number not in places and run.instance_id:
                key = execution.origin.workspace, run.work.node.runner_module
                use = self._uses.get(run.instance_id, _NOBODY).get(key) or self._use(run.instance_id, key)
                places[number] = use
                use.held += 1

    def forget(self, owned: OwnedExecution) -> None:
        """The execution is no longer owned here, or is loaded again."""
        places, owned.places = owned.places, {}
        for use in places.values():
            use.held -= 1

    def spent(self, workspace: str, now: Instant) -> float:
        """For how long (µs) the workspace has held places lately, all places together."""
        spent, since = self._spent.get(workspace, (0.0, now))
        return float(spent * 0.5 ** ((now - since) / _HALF_LIFE))

    def _spend(self, workspace: str, took: Span, now: Instant) -> None:
        spent, since = self._spent.get(workspace, (0.0, 0))
        if since != now:
            # Many runs end at the same time, because a batch is decided at one time.
            spent = self.spent(workspace, now)
            self._forget_light(now)
        spent += took
        self._spent[workspace] = (spent if spent < _SPENT_MAX else _SPENT_MAX, now)

    def _forget_light(self, now: Instant) -> None:
        if len(self._spent) >= self._spent_max:
            self._spent = {name: each for name, each in self._spent.items() if self.spent(name, now) >= SECOND / 1_000}
            self._spent_max = max(_IDLE_MAX, 2 * len(self._spent))

    def _use(self, instance_id: str, key: tuple[str, str]) -> Use:
        uses = self._uses.get(instance_id)
        if uses is None:
            if len(self._uses) >= _IDLE_MAX:
                self._uses = {name: each for name, each in self._uses.items() if any(use.held for use in each.values())}
            uses = self._uses[instance_id] = {}
        use = uses.get(key)
        if use is None:
            if len(uses) >= _IDLE_MAX:
                for idle in [name for name, each in uses.items() if not each.held]:
                    del uses[idle]
            use = uses[key] = Use()
        return use


def _time_taken(run: Run, now: Instant) -> Span:
    """By the runner's clock, or since the lease if the runner has not said when it began."""
    if not run.start_time:
        return now - run.create_time
    # A run that was deferred has left its runner and goes on.
    return max(0, (run.end_time or now) - run.start_time)
