"""The journal: one fenced, autocommitted statement appends a whole batch of executions (append.py composes it).

The fence is checked under the lock of the row, so a holder that has lost its lease (`load` raised the epoch) can never
commit again. An append whose answer was lost is repeated unchanged. If it is refused with our own epoch and last_seq,
it had been written.

Hazards: a statement is planned once per connection, when the tables may be small. Nested loops on the primary keys are
prescribed, because a plan that scans would stay as long as the connection. The snapshot of the answer may be older than
the row that refused: then (epoch, last_seq) look as if the append was not refused, and it is repeated.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final

import psycopg

from services.chassis.lease.frames import Lease
from services.chassis.postgres.arrays import BigInts, Texts
from services.chassis.postgres.connection import BY_INDEX, PgConnection, is_damage, is_of_values
from services.chassis.process.crash import crash_point
from services.coordinator.app.ports import (
    Append,
    AppendRejected,
    Fence,
    JournalDamaged,
    Loaded,
    Snapshot,
    TakenUp,
    UnknownEvents,
)
from services.coordinator.core.definition import Definition
from services.coordinator.core.fold import apply
from services.coordinator.core.state import Execution
from services.coordinator.store.append import composed
from services.coordinator.store.codec import CorruptRecord, UnknownEvent, unseal
from services.coordinator.store.columns import Uuids
from services.coordinator.store.snapshots import FORMAT, JournalSnapshotLog, restored, whole

# These run in one transaction. They are raw SQL, because every take-over waits for them. The fences are locked
# until the commit, and the later statements see everything that was committed before the lock. A first append of the
# last holder may be committed after FENCE has looked for its row: then READ_FENCES finds the row with an older epoch,
# and it is loaded again.
FENCE: Final = b"""
UPDATE executions e SET epoch = g.epoch FROM unnest($1, $2) AS g (execution_id, epoch)
WHERE e.execution_id = g.execution_id AND e.epoch <= g.epoch
"""
READ_FENCES: Final = b"""
SELECT g.place, e.epoch FROM unnest($1) WITH ORDINALITY AS g (execution_id, place)
JOIN executions e ON e.execution_id = g.execution_id
"""
READ_EVENTS: Final = b"""
SELECT g.place, j.events FROM unnest($1, $2) WITH ORDINALITY AS g (execution_id, format, place)
CROSS JOIN LATERAL (
  SELECT coalesce(max(s.last_seq), 0) AS last_seq FROM snapshots s
  WHERE s.execution_id = g.execution_id AND s.format = g.format AND s.is_whole
) whole
JOIN journal j ON j.execution_id = g.execution_id AND j.last_seq > whole.last_seq ORDER BY g.place, j.last_seq
"""
# Few executions have any.
READ_SNAPSHOTS: Final = b"""
SELECT g.place, s.last_seq, s.format, s.is_whole, s.data
FROM unnest($1, $2) WITH ORDINALITY AS g (execution_id, format, place)
JOIN snapshots s ON s.execution_id = g.execution_id AND s.format = g.format ORDER BY g.place, s.last_seq
"""
# A snapshot is read with all records before it, so one that is damaged would spoil all later ones. Another holder may
# have the execution by now; its snapshots stay.
DROP_SNAPSHOTS: Final = b"""
DELETE FROM snapshots s USING unnest($1, $2, $3) AS g (execution_id, format, epoch), executions e
WHERE s.execution_id = g.execution_id AND s.format = g.format
  AND e.execution_id = g.execution_id AND e.epoch = g.epoch
"""
# This is raw SQL, because a take-over must not wait for the import of SQLAlchemy.
LIVE_INSTANCES: Final = """
SELECT instance_id, CASE state WHEN 'LIVE' THEN 0 ELSE extract(epoch FROM clock_timestamp() - heard_time)::float8 END
FROM runner_sessions
WHERE state = 'LIVE' OR heard_time > clock_timestamp() - make_interval(secs => %s::float8)
"""
# Settings of a connection that loads. If it is given up at its deadline, the fences of its batch stay locked until the
# server notices that the client is gone, and none of them can be read again before that.
LOADING: Final = {**BY_INDEX, "client_connection_check_interval": "200ms"}


class PostgresJournal:
    """`writer` is for appends alone and has the settings BY_INDEX. `reader` is for loads, and `patient` for loads that
    need more time; both have LOADING."""

    def __init__(self, writer: PgConnection, reader: PgConnection, patient: PgConnection) -> None:
        self._writer = writer
        self._reader = reader
        self._patient = patient

    async def append(self, appends: Sequence[Append]) -> Mapping[int, Fence]:
        try:
            (rows,) = await self._writer.run_pipeline([composed(appends)])
        except psycopg.Error as failure:
            if not (is_of_values(failure) or is_damage(failure)):
                # Every other append would fail in the same way, so this process ends, and what was not written is
                # reported again.
                raise
            # The primary message alone, because the detail quotes the row.
            raise AppendRejected(failure.diag.message_primary or type(failure).__name__) from None
        return {place - 1: Fence(epoch, last_seq) for place, epoch, last_seq in rows}

    async def load(
        self, leases: Sequence[Lease], *, is_patient: bool, drops_snapshots: bool = False
    ) -> Sequence[Loaded]:
        connection = self._patient if is_patient else self._reader
        ids = Uuids([lease.lease_id for lease in leases])
        formats = Texts([FORMAT] * len(leases))
        epochs_given = BigInts([lease.epoch for lease in leases])
        crash_point("coordinator.take_over.before_commit")
        given = (ids, formats)
        statements = [
            (FENCE, (ids, epochs_given)),
            *([(DROP_SNAPSHOTS, (*given, epochs_given))] if drops_snapshots else ()),
            (READ_FENCES, (ids,)),
            (READ_SNAPSHOTS, given),
            (READ_EVENTS, given),
        ]
        try:
            *_, fences, snapshots, events = await connection.run_pipeline(statements)
        except psycopg.Error as failure:
            if is_damage(failure):
                raise JournalDamaged(failure.diag.message_primary or type(failure).__name__) from None
            raise
        crash_point("coordinator.take_over.after_commit")
        epochs = {place - 1: epoch for place, epoch in fences}
        if any(0 < epochs.get(place, 0) < lease.epoch for place, lease in enumerate(leases)):
            return await self.load(leases, is_patient=is_patient, drops_snapshots=drops_snapshots)
        rows = {place - 1: [row[1] for row in each] for place, each in itertools.groupby(events, itemgetter(0))}
        records = {
            place - 1: whole([Snapshot(*row[1:]) for row in each])
            for place, each in itertools.groupby(snapshots, itemgetter(0))
        }
        return [
            Loaded(lease.epoch, rows.get(place, []), records.get(place, []))
            if epochs.get(place, 0) == lease.epoch
            else Loaded(epochs.get(place, 0), ())
            for place, lease in enumerate(leases)
        ]

    async def live_instances(self, granted_again: float) -> Mapping[str, float]:
        return dict(await self._reader.fetch(LIVE_INSTANCES, (granted_again,)))


def fold_journal(execution_id: str, definition: Definition, rows: Sequence[bytes]) -> Execution:
    """The state of the execution. Raises UnknownEvents or CorruptRecord."""
    return _folded(Execution(execution_id, definition), rows)


def take_up(execution_id: str, definition: Definition, found: Loaded, events_each: int) -> TakenUp:
    """The state, from the newest snapshot and the events after it, or from all events. Raises UnknownEvents,
    CorruptRecord or SnapshotDamaged."""
    if not found.snapshots:
        execution = fold_journal(execution_id, definition, found.events)
        return TakenUp(execution, None)
    execution = restored(execution_id, definition, found.snapshots)
    log = JournalSnapshotLog(execution, events_each, execution.seq)
    return TakenUp(_folded(execution, found.events, log), log)


def _folded(execution: Execution, rows: Sequence[bytes], log: JournalSnapshotLog | None = None) -> Execution:
    for row in rows:
        for stored in unseal(row):
            if stored.seq != execution.seq + 1 or stored.execution_id != execution.execution_id:
                raise CorruptRecord(
                    f"after event {execution.seq} of {execution.execution_id} comes {stored.seq} of"
                    f" {stored.execution_id}"
                )
            if isinstance(stored.event, UnknownEvent):
                raise UnknownEvents(f"event {stored.seq} is of version {stored.event.schema_version}")
            apply(execution, stored.event)
            if log is not None:
                log.note(execution, (stored.event,))
    return execution
