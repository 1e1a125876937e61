"""Folds a journal again, and compares the state with the rows that were recorded.

A `Replay` is given the events in their order, and then compared with the recorded rows in theirs. It keeps the first
difference: the one with the smallest sequence number. A row that differs is charged to the last event that names its
run.

The events are also decided anew by the present rules (redeciding.py). A difference there is kept apart.

Old dead letters are deleted while their execution stays, so a row of them that is missing is no difference.

Hazard: a journal may have 100,000 events and more rows. What takes long for many of them is a generator: between two of
its steps the caller may do something else.
"""

import json
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NamedTuple

from services.coordinator.core.definition import Definition
from services.coordinator.core.events import Event, RunEvent
from services.coordinator.core.fold import apply
from services.coordinator.core.recorded_rows import RowName, RowsHash, folded_rows, place_of, value_text
from services.coordinator.core.redeciding import Redecider, ReplayDifference
from services.coordinator.core.state import Execution


class Replayed(NamedTuple):
    execution_id: str
    events: int
    # Empty: nothing was compared.
    recorded_hash: str
    replayed_hash: str
    first_difference: ReplayDifference | None
    # The number of events that the present rules have decided anew, and the first that they decide otherwise.
    redecided: int
    decided_otherwise: ReplayDifference | None


class NotReplayable(ValueError):
    """What was given is not a journal, or its rows. The message says where."""


class Replay:
    def __init__(self, execution_id: str, definition: Definition) -> None:
        self.execution = Execution(execution_id, definition)
        self.difference: ReplayDifference | None = None
        self._redecider = Redecider(Execution(execution_id, definition))
        # The last event that names a run, and under 0 the last of all.
        self._named: dict[int, tuple[int, str]] = {0: (0, "")}

    @property
    def seq(self) -> int:
        return self._named[0][0]

    def take(self, seq: int, event: Event) -> Generator[None, None, None]:
        """The next event, in steps. After one that cannot be folded, the others are only counted."""
        if seq != self.seq + 1:
            raise NotReplayable(f"after event {self.seq} comes {seq}")
        place = self._named[0] = (seq, type(event).__name__)
        if isinstance(event, RunEvent):
            self._named[event.run] = place
        if self.difference is not None:
            return
        try:
            apply(self.execution, event)
        except Exception as failure:  # noqa: BLE001 - whatever it is, this journal does not fold
            told = json.dumps(f"{type(failure).__name__}: {failure}")
            self.difference = ReplayDifference(*place, "", json.dumps("folded"), told)
        else:
            yield from self._redecider.take(seq, event)

    def finish(self) -> Generator[None, None, None]:
        """The last event of an append has been taken."""
        yield from self._redecider.finish()

    def comparison(self) -> "RowComparison":
        return RowComparison(self)

    def charged_to(self, run: int) -> tuple[int, str]:
        return self._named.get(run, self._named[0])

    def uncompared(self) -> Generator[None, None, Replayed]:
        rows = RowsHash()
        if self.difference is None and self.seq:
            for name, columns in folded_rows(self.execution):
                rows.add(name, value_text(columns))
                yield
        return self.result("", str(rows), self.difference)

    def result(self, recorded_hash: str, replayed_hash: str, first: ReplayDifference | None) -> Replayed:
        redecided, otherwise = self._redecider.redecided, self._redecider.difference
        id_ = self.execution.execution_id
        return Replayed(id_, self.seq, recorded_hash, replayed_hash, first, redecided, otherwise)


class RowComparison:
    """Compares recorded rows with those of a replay, which has to stay as it is meanwhile."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._recorded, self._replayed = RowsHash(), RowsHash()
        self._first = replay.difference
        is_folded = replay.difference is None and replay.seq > 0
        self._folded = folded_rows(replay.execution) if is_folded else iter(())
        self._next = next(self._folded, None)
        self._before = (-1, 0)

    def take(self, name: RowName, recorded: Mapping[str, Any]) -> Generator[None, None, None]:
        """The next recorded row, in steps. Raises NotReplayable if it is not in its place."""
        try:
            place = place_of(name)
        except ValueError:
            raise NotReplayable(f"there is no table {name[0]!r}") from None
        if place <= self._before:
            raise NotReplayable(f"the row {name[0]}.{name[1]} is not in its place")
        self._before = place
        self._recorded.add(name, value_text(recorded))
        if self._replay.difference is not None:
            return
        yield from self._pass_folded(place)
        if self._next is None or self._next[0] != name:
            self._differs(name, "", '"is there"', '"is missing"')
            return
        # A column that was not recorded was added since.
        columns = {column: value for column, value in self._next[1].items() if column in recorded}
        self._replayed.add(name, value_text(columns))
        for column, was, now in _apart(recorded, columns):
            self._differs(name, column, was, now)
        self._next = next(self._folded, None)

    def result(self) -> Generator[None, None, Replayed]:
        replay = self._replay
        if not self._recorded.count:
            return (yield from replay.uncompared())
        yield from self._pass_folded(None)
        return replay.result(str(self._recorded), str(self._replayed), self._first)

    def _pass_folded(self, place: tuple[int, int] | None) -> Generator[None, None, None]:
        """Go on to the folded row of this place. Those before it were not recorded."""
        while self._next is not None and (place is None or place_of(self._next[0]) < place):
            name, columns = self._next
            if name[0] != "dead_letters":
                self._replayed.add(name, value_text(columns))
                self._differs(name, "", '"is missing"', '"is there"')
            self._next = next(self._folded, None)
            yield

    def _differs(self, name: RowName, column: str, recorded: str, replayed: str) -> None:
        table, number = name
        field = ".".join(filter(None, (table, str(number or ""), column)))
        found = ReplayDifference(*self._replay.charged_to(number), field, recorded, replayed)
        if self._first is None or found.seq < self._first.seq:
            self._first = found


def _apart(recorded: Mapping[str, Any], replayed: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The recorded columns that differ."""
    for column in sorted(recorded):
        was, now = value_text(recorded[column]), value_text(replayed[column]) if column in replayed else ""
        if was != now:
            yield column, was, now
