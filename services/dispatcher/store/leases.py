"""Ends leases outside the batches: they are handed back, have failed, or their holder's instance has ended.

These statements are rare and use other connections, so that a batch never waits for them. They lock no workspace,
because they only free slots.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from sqlalchemy import Boolean, Double, LargeBinary, Text, Uuid, any_, bindparam, case, cast, func, select, update
from sqlalchemy.dialects.postgresql import ARRAY

from services.chassis.postgres.arrays import Texts
from services.chassis.postgres.compiled import Composed, seconds
from services.chassis.postgres.connection import Connection
from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point
from services.dispatcher.core.items import LateReason, LeaseReleased, LeaseReport, Requeued, State
from services.dispatcher.core.late_reasons import LeasedRow, late_reason
from services.dispatcher.core.releases import Fate, fate_of
from services.dispatcher.store.tables import (
    epochs,
    execution_id_text,
    is_asked_for,
    is_held,
    lease_arrays,
    locked_leases,
    queue,
)

_GIVEN: Final = locked_leases(State.CLAIMED, State.DISPATCHED)
_BEGUN_IDS: Final = cast(bindparam("begun_ids", type_=ARRAY(Text)), ARRAY(Uuid(as_uuid=False)))
_HAND_BACK: Final = Composed(
    update(queue)
    .where(queue.c.execution_id == _GIVEN.c.execution_id)
    .values(
        state=int(State.PENDING),
        urgent=True,
        begun=queue.c.begun | (queue.c.execution_id == any_(_BEGUN_IDS)),
        holder=None,
        granted_time=None,
    )
    .returning(execution_id_text, queue.c.workspace, queue.c.ends_only)
)
# An execution has ended, and a message that may reopen it has come meanwhile. If it goes on, it needs a slot, and its
# deadline counts anew. The new one is in the journal alone, so its coordinator ends it once it has a slot, for which
# it waits before all that was never granted.
_KEEP_OPEN: Final = Composed(
    update(queue)
    .where(queue.c.execution_id == _GIVEN.c.execution_id, queue.c.reopens)
    .values(
        state=int(State.PENDING),
        urgent=True,
        ends_only=False,
        begun=True,
        reopens=False,
        holder=None,
        granted_time=None,
        deadline_time=None,
    )
    .returning(execution_id_text, queue.c.workspace, queue.c.ends_only)
)
_LOCKED: Final = locked_leases(*State)
_NOTE_BEGUN: Final = Composed(
    update(queue).where(queue.c.execution_id == _LOCKED.c.execution_id, ~queue.c.begun).values(begun=True)
)


# Rows that another transaction has locked are skipped: it ends the lease itself, or the next sweep finds it.
_HELD: Final = (
    select(queue.c.execution_id)
    .where(queue.c.holder == any_(bindparam("holders", type_=ARRAY(Text))), is_held)
    .order_by(queue.c.execution_id)
    .with_for_update(skip_locked=True)
    .cte("held")
    .prefix_with("MATERIALIZED", dialect="postgresql")
)
_END_HELD: Final = Composed(
    update(queue)
    .where(queue.c.execution_id == _HELD.c.execution_id)
    .values(state=int(State.PENDING), urgent=True, holder=None, granted_time=None, epoch=epochs.next_value())
    .returning(execution_id_text, queue.c.workspace, queue.c.ends_only)
)

_FIND: Final = Composed(select(execution_id_text, queue.c.epoch, queue.c.state, queue.c.holder).where(is_asked_for))

_LOCK_ONE: Final = Composed(
    select(queue.c.workspace, queue.c.attempts)
    .where(queue.c.execution_id == bindparam("execution_id"), queue.c.epoch == bindparam("epoch"), is_held)
    .with_for_update()
)

_START: Final = Composed(select(queue.c.start).where(queue.c.execution_id == bindparam("failed_id")))
_WAKE_SECONDS: Final = bindparam("wake_seconds", type_=Double)
_FAIL_ONE: Final = Composed(
    update(queue)
    .where(queue.c.execution_id == bindparam("failed_id"))
    .values(
        state=bindparam("new_state"),
        attempts=bindparam("new_attempts"),
        urgent=True,
        begun=queue.c.begun | bindparam("has_begun", type_=Boolean),
        holder=None,
        granted_time=None,
        wake_time=case((_WAKE_SECONDS > 0, func.clock_timestamp() + seconds(_WAKE_SECONDS))),
        failure_reason=func.nullif(bindparam("reason", type_=Text), ""),
        failure_message=func.nullif(bindparam("message", type_=Text), ""),
        failure_time=case((bindparam("is_dead", type_=Boolean), func.clock_timestamp())),
        parent_told=False,
        shown_start=bindparam("shown_start", type_=LargeBinary),
    )
)


class PostgresLeases:
    def __init__(self, database: Database, *, lease_scale: float, without_input: Callable[[bytes], bytes]) -> None:
        """`without_input` makes of a StartOrder what lists show of it."""
        self._database = database
        self._lease_scale = lease_scale
        self._without_input = without_input

    async def hand_back(self, leases: Sequence[tuple[str, int]], begun: Collection[str] = ()) -> list[Requeued]:
        """Takes execution and epoch of each lease, and the executions whose journal has begun. A lease that another
        holder has by now is not touched."""
        crash_point("dispatcher.hand_back.before_commit")
        ids, epochs_given = lease_arrays(leases)
        have_begun = Texts([execution_id for execution_id, _ in leases if execution_id in begun])
        rows = await self._database.fetch(*_HAND_BACK(execution_ids=ids, epochs=epochs_given, begun_ids=have_begun))
        crash_point("dispatcher.hand_back.after_commit")
        return [Requeued(*row) for row in rows]

    async def keep_open(self, leases: Sequence[tuple[str, int]]) -> list[Requeued]:
        """Takes execution and epoch of each lease whose execution has ended. Those that a message may reopen are queued
        again."""
        crash_point("dispatcher.keep_open.before_commit")
        ids, epochs_given = lease_arrays(leases)
        rows = await self._database.fetch(*_KEEP_OPEN(execution_ids=ids, epochs=epochs_given))
        crash_point("dispatcher.keep_open.after_commit")
        return [Requeued(*row) for row in rows]

    async def note_begun(self, leases: Sequence[tuple[str, int]]) -> None:
        """Takes execution and epoch of each lease whose journal has begun."""
        crash_point("dispatcher.note_begun.before_commit")
        ids, epochs_given = lease_arrays(leases)
        await self._database.execute(*_NOTE_BEGUN(execution_ids=ids, epochs=epochs_given))
        crash_point("dispatcher.note_begun.after_commit")

    async def end(self, instances: Sequence[str]) -> list[Requeued]:
        """Put all executions that these instances hold back into the queue, under a higher epoch."""
        crash_point("dispatcher.end.before_commit")
        rows = await self._database.fetch(*_END_HELD(holders=Texts(list(instances))))
        crash_point("dispatcher.end.after_commit")
        return [Requeued(*row) for row in rows]

    async def fail(self, report: LeaseReleased) -> tuple[str, Fate] | None:
        """Record a failed dispatch. Returns the workspace and the new state; None: another holder has the lease."""
        scale = self._lease_scale

        async def work(connection: Connection) -> tuple[str, Fate] | None:
            lock = _LOCK_ONE(execution_id=report.execution_id, epoch=report.epoch)
            row = await (await connection.execute(*lock)).fetchone()
            if row is None:
                return None
            fate = fate_of(report, row[1])
            is_dead = fate.state is State.FAILED
            failing = _FAIL_ONE(
                failed_id=report.execution_id,
                new_state=int(fate.state),
                new_attempts=fate.attempts,
                has_begun=report.has_begun,
                wake_seconds=fate.wake_seconds * scale,
                reason=fate.failure_reason,
                message=fate.failure_message,
                is_dead=is_dead,
                shown_start=await self._shown(connection, report.execution_id) if is_dead else None,
            )
            await connection.execute(*failing)
            crash_point("dispatcher.fail.before_commit")
            return row[0], fate

        failed = await self._database.transaction(work)
        crash_point("dispatcher.fail.after_commit")
        return failed

    async def _shown(self, connection: Connection, execution_id: str) -> bytes | None:
        row = await (await connection.execute(*_START(failed_id=execution_id))).fetchone()
        return None if row is None else self._without_input(row[0])

    async def find(self, execution_ids: Collection[str]) -> dict[str, LeasedRow]:
        rows = await self._database.fetch(*_FIND(execution_ids=Texts(list(execution_ids))))
        return {row[0]: LeasedRow(row[1], State(row[2]), row[3]) for row in rows}

    async def reasons(self, reports: Sequence[LeaseReport]) -> list[LateReason | None]:
        """Why each report has no effect; None: an earlier copy of it had its effect."""
        found = await self.find({report.execution_id for report in reports})
        return [late_reason(report, found.get(report.execution_id)) for report in reports]
