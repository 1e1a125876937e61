"""How the workspaces use each runner: the places that they hold, and how fast they give them back.

A place is held by a live run of an execution that is owned here. Runs that other coordinators have granted are not
seen: the runner divides its credit among its coordinators, and each of them shares out what it is given.

A runner asks for more runs than it has places when runs have just ended (services/runner/core/window.py), so that it
need not wait for the next ones. That is meant for workspaces whose runs are short: the work of a workspace counts as
slow as far as it holds more places than its short runs have given back in the last moments.

Hazard: whoever changes the live runs of an execution calls `follow` with the numbers of those runs, and whoever forgets
the execution calls `forget`. Otherwise the places of a run that is over stay held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.core.values import SECOND, Instant, Span

# The last moments are the present slot and the one before it: at least as long as the runner looks back.
_SLOT: Final[Span] = 50_000
# A runner hands back what has waited there for so long.
_SHORT: Final[Span] = SECOND
# Beyond this number, entries that hold nothing are forgotten.
_IDLE_MAX: Final = 100


class Use:
    """The use that one workspace makes of one runner."""

    __slots__ = ("_ended", "_ended_before", "_slot", "held")

    def __init__(self) -> None:
        self.held = 0
        self._slot = self._ended = self._ended_before = 0

    def end_one(self, lived: Span, now: Instant) -> None:
        self.held -= 1
        if lived < _SHORT:
            self._turn_to(now)
            self._ended += 1

    def ended_lately(self, now: Instant) -> int:
        """How many short runs have ended."""
        self._turn_to(now)
        return self._ended + self._ended_before

    def _turn_to(self, now: Instant) -> None:
        slot = now // _SLOT
        if slot != self._slot:
            self._ended_before = self._ended if slot == self._slot + 1 else 0
            self._slot, self._ended = slot, 0


_NOBODY: Final[Mapping[str, Use]] = MappingProxyType({})


class RunnerPlaces:
    def __init__(self) -> None:
        # By instance, and by workspace.
        self._uses: dict[str, dict[str, Use]] = {}

    def at(self, instance_id: str) -> Mapping[str, Use]:
        """The use that each workspace makes of this runner."""
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
                    places.pop(number).end_one(now - execution.runs[number - 1].create_time, now)
            elif number not in places and run.instance_id:
                use = places[number] = self._use(run.instance_id, execution.origin.workspace)
                use.held += 1

    def forget(self, owned: OwnedExecution) -> None:
        """The execution is no longer owned here, or is loaded again."""
        places, owned.places = owned.places, {}
        for use in places.values():
            use.held -= 1

    def _use(self, instance_id: str, workspace: str) -> Use:
        uses = self._uses.get(instance_id)
        if uses is None:
            if len(self._uses) >= _IDLE_MAX:
                self._uses = {name: each for name, each in self._uses.items() if any(use.held for use in each.values())}
            uses = self._uses[instance_id] = {}
        use = uses.get(workspace)
        if use is None:
            if len(uses) >= _IDLE_MAX:
                for idle in [name for name, each in uses.items() if not each.held]:
                    del uses[idle]
            use = uses[workspace] = Use()
        return use
