"""Decides a journal again: the present rules are given what was given when it was written, and have to decide the same.

    event ──command_behind──► command ──handle──► events, compared with those that were recorded

The events that follow from a command are decided anew, and each must be equal to the recorded one. Where the journal
does not say what the command was (commands_behind.py), the events of that append are applied as they are, and are not
counted as decided anew.

Hazard: the rules may have changed on purpose since the journal was written. So a difference here says that the present
code would decide otherwise, and not that the journal is damaged.
"""

import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from services.coordinator.core import events as ev
from services.coordinator.core.commands_behind import command_behind
from services.coordinator.core.fold import fold
from services.coordinator.core.handlers import handle
from services.coordinator.core.recorded_rows import payload_hash
from services.coordinator.core.state import Execution


class ReplayDifference(NamedTuple):
    """Between what was recorded and what a replay finds."""

    seq: int
    event_type: str
    # "runs.3.output" for a row, "then" for an event. Empty: the event itself.
    field: str
    # JSON.
    recorded: str
    replayed: str


# Appends are smaller. In a larger one, which an exported journal may claim to have, nothing is decided anew.
_APPEND_MAX = 2_000


class Redecider:
    """Given all events of a journal in their order."""

    def __init__(self, execution: Execution) -> None:
        """`execution` has not started, and belongs to this alone."""
        self._execution = execution
        self._append: list[tuple[int, ev.Event]] = []
        # The number of events that were decided anew.
        self.redecided = 0
        self.difference: ReplayDifference | None = None

    def take(self, seq: int, event: ev.Event) -> None:
        if self._append and self._append[0][1].time != event.time:
            self.finish()
        self._append.append((seq, event))

    def finish(self) -> None:
        """There are no more events in the append."""
        append, self._append = self._append, []
        place = 0 if len(append) <= _APPEND_MAX else len(append)
        if place:
            fold(self._execution, (event for _, event in append))
        while place < len(append) and self.difference is None:
            rest = [event for _, event in append[place:]]
            try:
                command = command_behind(self._execution, rest)
                decided = None if command is None else handle(self._execution, command, rest[0].time).events
            except Exception as failure:  # noqa: BLE001 - whatever it is, the present rules do not decide this
                self.difference = _otherwise(*append[place], f"{type(failure).__name__}: {failure}")
                return
            if decided is None:
                fold(self._execution, rest)
                return
            place += self._compare(append[place:], decided)

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
