"""Which parts of the state an event has changed, so that a snapshot writes those and no others.

`Touched` names works by their keys and runs by their numbers. Everything else of the state is small and is written
whole. It looks at the state after the event, and errs on the side of too much: an event touches the works that it
names, those that the edges of its work lead to, and its run. Tests compare what is written with the whole state.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, get_args, get_type_hints

from services.coordinator.core import events as ev
from services.coordinator.core.state import Execution, Run, Work, WorkLoop
from services.coordinator.core.values import WorkKey

_Keys = Callable[[Any], Iterable[WorkKey]]


def _reopened(works: tuple[ev.ReopenedWork, ...]) -> Iterable[WorkKey]:
    """Reopening a node may end the wait of its work before."""
    for work in works:
        yield work.key
        yield work.key._replace(generation=work.key.generation - 1)


# The keys in a field of an event, by the type of the field.
_KEYS_IN: Mapping[Any, _Keys] = {
    WorkKey: lambda key: (key,),
    tuple[WorkKey, ...]: lambda keys: keys,
    ev.Consequences: lambda then: (*then.ready, *then.begun, *then.skipped, *then.blocked),
    tuple[ev.ReopenedWork, ...]: _reopened,
}
_FIELDS: Mapping[type[ev.Event], tuple[tuple[str, _Keys], ...]] = {
    event: tuple((name, _KEYS_IN[hint]) for name, hint in get_type_hints(event).items() if hint in _KEYS_IN)
    for event in get_args(ev.Event)
}


class Touched:
    """Oldest first: new works and runs are in the order in which they were made."""

    def __init__(self) -> None:
        self.works: dict[WorkKey, Work] = {}
        self.loops: dict[WorkKey, WorkLoop] = {}
        self.runs: dict[int, Run] = {}
        # How many there were at the last look.
        self._works = 0
        self._runs = 0

    def __len__(self) -> int:
        return len(self.works) + len(self.loops) + len(self.runs)

    def note(self, execution: Execution, event: ev.Event) -> None:
        """The event was just applied, or others of the same decision after it."""
        self._note_new(execution)
        for name, keys_in in _FIELDS[type(event)]:
            for key in keys_in(getattr(event, name)):
                self._note_key(execution, key)
        number = getattr(event, "run", 0)
        if number:
            run = execution.runs[number - 1]
            self.runs[number] = run
            self._note_work(run.work)
        then = getattr(event, "then", None)
        if then is not None and then.edges:
            self._note_targets(execution, event, number)

    def note_seen(self, execution: Execution) -> None:
        """What there is now is in a snapshot already."""
        self._works, self._runs = len(execution.work), len(execution.runs)

    def note_all(self, execution: Execution) -> None:
        self._note_new(execution)

    def _note_new(self, execution: Execution) -> None:
        new = len(execution.work) - self._works
        if new:
            for work in reversed([*islice(reversed(execution.work.values()), new)]):
                self._note_work(work)
            self._works += new
        for number in range(self._runs + 1, len(execution.runs) + 1):
            self.runs[number] = execution.runs[number - 1]
        self._runs = len(execution.runs)

    def _note_key(self, execution: Execution, key: WorkKey) -> None:
        work = execution.work.get(key)
        if work is not None:
            self._note_work(work)
            if loop := execution.loops.get(key):
                self.loops[key] = loop

    def _note_work(self, work: Work) -> None:
        self.works[work.key] = work
        if work.loop is not None:
            self.loops[work.loop.work.key] = work.loop

    def _note_targets(self, execution: Execution, event: Any, number: int) -> None:
        key = getattr(event, "key", None)
        work = execution.runs[number - 1].work if key is None else execution.work[key]
        for edge in work.node.edges:
            self._note_work(execution.target_of(edge.target))
