"""Snapshots: what the journal of a long execution adds up to, so that a take-over folds only its last events.

A snapshot is never the truth. The journal is folded from its first event whenever there is no snapshot that this
version can read, and `windlass admin verify` compares the two. Whoever takes the execution over and finds a damaged
record drops all of its format, because every later snapshot would be read with it.

Works, loops and runs are stored again only when they have changed, so a snapshot costs the same however long the
execution is. Records are added to an append now and then, and none is ever changed:

    record     works, loops and runs that have changed and were not stored since, oldest first
    whole      a record that leaves nothing over. It also has the rest of the state, which is small

The state after a whole record is that record, with the newest form of each work, loop and run in it and in all records
before. A record that is not whole belongs to the next one that is. If its holder dies before that, its successor does
not read it, finds the same changes in the tail of the journal, and stores them again.

`FORMAT` is a hash of what is stored: classes, the names and types of their fields, members of enums. A version reads
the records of its own format and no others. Increase `_MEANING` when the fold gives a field another meaning.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final
from zlib import crc32

import orjson

from services.coordinator.app.ports import Snapshot, SnapshotDamaged
from services.coordinator.core.definition import Definition
from services.coordinator.core.events import Event
from services.coordinator.core.state import Execution, Run, Timer, Work, WorkLoop, is_stale
from services.coordinator.core.touched import Touched
from services.coordinator.core.values import WorkKey
from services.coordinator.store.state_shape import In, Out, reader, shape_of

_MEANING: Final = 1
# A record may add this much to an append, which many executions share. That takes some ms of CPU. The bytes are those
# of payloads.
OBJECTS_MAX: Final = 250
BYTES_MAX: Final = 512 * 1024
_CHECKSUM: Final = struct.Struct("<I")

# The rest are a cache, what is given when the state is read, and what is stored apart.
_APART: Final = ("execution_id", "definition", "state_views", "work", "runs")
_WORK: Final = shape_of(Work, left_out=("node",), joined_later=("run", "loop"))
# The items are taken from the config, or read from the output store, when they are needed.
_LOOP: Final = shape_of(WorkLoop, left_out=("items",))
_RUN: Final = shape_of(Run)
_REST: Final = shape_of(Execution, left_out=_APART)
_read_work, _read_loop, _read_run, _read_rest = (reader(each.names) for each in (_WORK, _LOOP, _RUN, _REST))
_NODE, _NEWEST_RUN, _LOOP_OF = (_WORK.names.index(name) for name in ("node", "run", "loop"))
_ITEMS: Final = _LOOP.names.index("items")
_TIMERS: Final = tuple(_REST.names.index(name) for name in ("timers", "held_timers"))
_STORED: Final = tuple((place, name) for place, name in enumerate(_REST.names) if name not in _APART)

_SHAPES: Final = (_WORK, _LOOP, _RUN, _REST)
FORMAT: Final = hashlib.sha256(f"{_MEANING} {[each.text for each in _SHAPES]}".encode()).hexdigest()[:16]


class JournalSnapshotLog:
    """The snapshots of one execution: what has changed since it was stored, and when the next one is due."""

    def __init__(self, execution: Execution, events_each: int, whole_seq: int = 0) -> None:
        """`whole_seq`: the last event of the newest snapshot, which has all of this state. 0: there is none."""
        self._events_each = events_each
        self._whole_seq = whole_seq
        self._touched = Touched()
        # The number of parts that were touched since the last append.
        self._fresh = 0
        if whole_seq:
            self._touched.note_seen(execution)
        else:
            self._touched.note_all(execution)

    def note(self, execution: Execution, events: Iterable[Event]) -> None:
        """These events were applied."""
        before = len(self._touched)
        for event in events:
            self._touched.note(execution, event)
        self._fresh += len(self._touched) - before

    def due(self, execution: Execution) -> Snapshot | None:
        """The record that the present append is to bring, if it is to bring one. It is not given again."""
        fresh, self._fresh = self._fresh, 0
        if execution.seq - self._whole_seq < self._events_each:
            return None
        # It is more than what this append has changed, so that there is a whole record in the end.
        return self._take(execution, max(OBJECTS_MAX, 2 * fresh))

    def _take(self, execution: Execution, room: int) -> Snapshot:
        touched = self._touched
        drain = _Drain(room)
        loops = drain.take(touched.loops, lambda loop: _LOOP.put(_read_loop(loop), drain.out))
        works = drain.take(touched.works, lambda work: _WORK.put(_read_work(work), drain.out))
        runs = drain.take(touched.runs, lambda run: _RUN.put(_read_run(run), drain.out))
        is_whole = not touched
        if is_whole:
            self._whole_seq = execution.seq
        rest = _rest(execution) if is_whole else b"null"
        data = b"[%b,%b,%b,%b]" % (works, loops, runs, rest)
        return Snapshot(execution.seq, FORMAT, is_whole, _CHECKSUM.pack(crc32(data)) + data)


class _Drain:
    def __init__(self, room: int) -> None:
        self.out = Out()
        self._room = room

    def take(self, changed: dict[Any, Any], put: Any) -> bytes:
        """Takes the oldest of these while there is room."""
        stored = []
        for key in [*islice(changed, self._room)]:
            if self.out.payload_bytes >= BYTES_MAX:
                break
            stored.append(put(changed.pop(key)))
        self._room -= len(stored)
        return orjson.dumps(stored)


def _rest(execution: Execution) -> bytes:
    values = _read_rest(execution)
    for place in _TIMERS:
        values[place] = _in_force(execution, values[place])
    return orjson.dumps(_REST.put(values, Out()))


def _in_force(execution: Execution, timers: Iterable[Timer]) -> list[Timer]:
    # A sorted list is a heap.
    return sorted(timer for timer in timers if not is_stale(execution, timer))


def whole(records: Sequence[Snapshot]) -> Sequence[Snapshot]:
    """The records that the newest state needs, from all of one format."""
    last = max((place for place, record in enumerate(records, 1) if record.is_whole), default=0)
    return records[:last]


def restored(execution_id: str, definition: Definition, records: Sequence[Snapshot]) -> Execution:
    """The state after the last record, which is whole. Raises SnapshotDamaged."""
    try:
        parts = [orjson.loads(_checked(record)) for record in records]
        into = In(definition)
        _take_works(parts, into)
        execution = Execution(execution_id, definition)
        execution.work, execution.runs = into.works, into.runs
        values = _REST.take(parts[-1][3], into)
        for place, name in _STORED:
            setattr(execution, name, values[place])
    except (orjson.JSONDecodeError, LookupError, TypeError, ValueError) as fault:
        raise SnapshotDamaged(f"the records up to {records[-1].last_seq} do not add up: {fault!r}") from fault
    if execution.seq != records[-1].last_seq:
        raise SnapshotDamaged(f"the record of event {records[-1].last_seq} has the state after {execution.seq}")
    return execution


def _checked(record: Snapshot) -> memoryview:
    data = memoryview(record.data)
    if _CHECKSUM.unpack_from(data) != (crc32(data[_CHECKSUM.size :]),):
        raise SnapshotDamaged(f"the checksum of the record of event {record.last_seq} does not fit")
    return data[_CHECKSUM.size :]


def _take_works(parts: Sequence[Any], into: In) -> None:
    """Works are made first, then what refers to them, then they are joined with it."""
    stored_works = {tuple(values[0]): values for works, _, _, _ in parts for values in works}
    stored_loops = {tuple(values[0]): values for _, loops, _, _ in parts for values in loops}
    stored_runs = {values[0]: values for _, _, runs, _ in parts for values in runs}
    joins = []
    nodes = into.definition.nodes
    for values in stored_works.values():
        _WORK.take(values, into)
        key = values[0]
        node = nodes[key.node]
        values[_NODE] = node.body if key.iteration else node
        run, loop = values[_NEWEST_RUN], values[_LOOP_OF]
        values[_NEWEST_RUN] = values[_LOOP_OF] = None
        work = into.works[key] = Work(*values)
        joins.append((work, run, loop))
    for key, values in stored_loops.items():
        values[_ITEMS] = ()
        into.loops[WorkKey(*key)] = WorkLoop(*_LOOP.take(values, into))
    for number in range(1, len(stored_runs) + 1):
        into.runs.append(Run(*_RUN.take(stored_runs[number], into)))
    for work, run, loop in joins:
        if run is not None:
            work.run = into.runs[run - 1]
        if loop is not None:
            work.loop = into.loops[WorkKey(*loop)]
