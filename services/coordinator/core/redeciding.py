"""Decides a journal again: the present rules are given what was given when it was written, and have to decide the same.

    event ──command_behind──► command ──handle──► events, compared with those that were recorded

The events that follow from a command are decided anew, and each must be equal to the recorded one. Where the journal
does not say what the command was (commands_behind.py), the events of that append are applied as they are, and are not
counted as decided anew.

Hazard: the rules may have changed on purpose since the journal was written. So a difference here says that the present
code would decide otherwise, and not that the journal is damaged.

Hazard: an exported journal comes from anybody, and may claim what no coordinator writes. So the work is done in steps,
between which the caller may do something else, and what would make one step long is not decided anew.
"""

import json
from collections.abc import Generator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from services.coordinator.core import events as ev
from services.coordinator.core.commands_behind import command_behind
from services.coordinator.core.fold import apply
from services.coordinator.core.handlers import handle
from services.coordinator.core.recorded_rows import payload_hash
from services.coordinator.core.state import Execution
from services.coordinator.core.values import Instant


class ReplayDifference(NamedTuple):
    """Between what was recorded and what a replay finds."""

    seq: int
    event_type: str
    # "runs.3.output" for a row, "then" for an event. Empty: the event itself.
    field: str
    # JSON.
    recorded: str
    replayed: str


# Appends are smaller. In a larger one nothing is decided anew.
_APPEND_MAX = 2_000
# One command may concern all that is under way. An execution with more of it is only folded.
_UNDER_WAY_MAX = 5_000


class Redecider:
    """Given all events of a journal in their order."""

    def __init__(self, execution: Execution) -> None:
        """`execution` has not started, and belongs to this alone."""
        self._execution = execution
        self._append: list[tuple[int, ev.Event]] = []
        # All events of an append have the same time.
        self._time: Instant | None = None
        self._is_too_large = False
        # The number of events that were decided anew.
        self.redecided = 0
        self.difference: ReplayDifference | None = None

    def take(self, seq: int, event: ev.Event) -> Generator[None, None, None]:
        """The steps that the next event brings about. After a difference there are none."""
        if self.difference is not None:
            return
        if event.time != self._time:
            yield from self.finish()
            self._time, self._is_too_large = event.time, False
        self._append.append((seq, event))
        if self._is_too_large or len(self._append) > _APPEND_MAX:
            self._is_too_large = True
            yield from self._passed()

    def finish(self) -> Generator[None, None, None]:
        """There are no more events in the append."""
        while self._append and self.difference is None:
            rest = [event for _, event in self._append]
            try:
                is_decidable = _under_way(self._execution) <= _UNDER_WAY_MAX
                command = command_behind(self._execution, rest) if is_decidable else None
                decided = None if command is None else handle(self._execution, command, rest[0].time).events
            except Exception as failure:  # noqa: BLE001 - whatever it is, the present rules do not decide this
                self.difference = _otherwise(*self._append[0], f"{type(failure).__name__}: {failure}")
                break
            if decided is None:
                yield from self._passed()
            else:
                del self._append[: self._compare(self._append, decided)]
                yield
        self._append = []

    def _passed(self) -> Generator[None, None, None]:
        """The events of the append are applied as they are, and not decided."""
        append, self._append = self._append, []
        for _, event in append:
            apply(self._execution, event)
            yield

    def _compare(self, recorded: Sequence[tuple[int, ev.Event]], decided: Sequence[ev.Event]) -> int:
        """The number of events that were decided."""
        for (seq, was), now in zip(recorded, decided, strict=False):
            if was != now:
                self.difference = _first_field(seq, was, now)
                break
            self.redecided += 1
        else:
            if len(decided) > len(recorded):
                seq, _ = recorded[-1]
                self.difference = ReplayDifference(seq, "", "", "", json.dumps(type(decided[len(recorded)]).__name__))
            elif not decided:
                self.difference = _otherwise(*recorded[0], "nothing")
        return len(decided)


def _under_way(execution: Execution) -> int:
    return sum(map(len, (execution.live, execution.timers, execution.to_begin, execution.passed_over)))


def _otherwise(seq: int, was: ev.Event, now: str) -> ReplayDifference:
    name = type(was).__name__
    return ReplayDifference(seq, name, "", json.dumps(name), json.dumps(now))


def _first_field(seq: int, was: ev.Event, now: ev.Event) -> ReplayDifference:
    if type(was) is not type(now):
        return _otherwise(seq, was, type(now).__name__)
    pairs = [(each.name, getattr(was, each.name), getattr(now, each.name)) for each in fields(was)]
    name, recorded, replayed = next(pair for pair in pairs if pair[1] != pair[2])
    return ReplayDifference(seq, type(was).__name__, name, _shown(recorded), _shown(replayed))


def _shown(value: Any) -> str:
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return payload_hash(value)
