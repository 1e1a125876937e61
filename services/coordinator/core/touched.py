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
# The work that an event is about is looked up by itself, because every event of a long execution has one.
_ITS_WORK = "key"
_FIELDS: Mapping[type[ev.Event], tuple[tuple[str, _Keys], ...]] = {
    event: tuple(
        (name, _KEYS_IN[hint]) for name, hint in get_type_hints(event).items() if hint in _KEYS_IN and name != _ITS_WORK
    )
    for event in get_args(ev.Event)
}


class Touched:
    """Oldest first: new works and runs are in the order in which they were made."""

    def __init__(self) -> None:
        self.works: dict[WorkKey, Work] = {}
        self.loops: dict[WorkKey, WorkLoop] = {}
        self.runs: dict[int, Run] = {}
        # How many works there were at the last look. A new run is named by the event that makes it.
        self._works = 0

    def __len__(self) -> int:
        return len(self.works) + len(self.loops) + len(self.runs)

    def note(self, execution: Execution, event: ev.Event) -> None:
        """The event was just applied, or others of the same decision after it."""
        if len(execution.work) != self._works:
            self._note_new_works(execution)
        work = None
        if number := getattr(event, "run", 0):
            run = self.runs[number] = execution.runs[number - 1]
            work = run.work
        elif key := getattr(event, _ITS_WORK, None):
            work = execution.work.get(key)
        if work is not None:
            self._note_work(execution, work)
        for name, keys_in in _FIELDS[type(event)]:
            value = getattr(event, name)
            if value is ev.NOTHING_FOLLOWS:
                continue
            for key in keys_in(value):
                if other := execution.work.get(key):
                    self._note_work(execution, other)
            if work is not None and isinstance(value, ev.Consequences) and value.edges:
                for edge in work.node.edges:
                    self._note_work(execution, execution.target_of(edge.target))

    def note_seen(self, execution: Execution) -> None:
        """What there is now is in a snapshot already."""
        self._works = len(execution.work)

    def note_all(self, execution: Execution) -> None:
        self._note_new_works(execution)
        self.runs.update({run.number: run for run in execution.runs})

    def _note_new_works(self, execution: Execution) -> None:
        new = len(execution.work) - self._works
        for work in reversed([*islice(reversed(execution.work.values()), new)]):
            self._note_work(execution, work)
        self._works += new

    def _note_work(self, execution: Execution, work: Work) -> None:
        key = work.key
        self.works[key] = work
        if loop := work.loop or execution.loops.get(key):
            self.loops[loop.work.key] = loop
