"""The statements of the periodic rounds: find waiting work, due times, lost grants and old rows.

They skip rows that another transaction has locked; the next round finds them again.
"""

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import func
from sqlalchemy.dialects.postgresql import ARRAY

from services.chassis.postgres.arrays import Texts
from services.chassis.postgres.compiled import Composed, seconds
from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point
from services.dispatcher.core.items import GivenUp, Measure, Requeued, State
from services.dispatcher.store.tables import (
    coordinator_sessions,
    execution_id_text,
    is_asked_for,
    is_dead,
    is_going,
    is_held,
    is_in,
    is_parked,
    is_pending,
    is_untold,
    is_waiting,
    lease_arrays,
    locked_leases,
    queue,
    requests,
    requeues,
)

# The planner expects many rows when a limit is a parameter.
_ONE: Final[sa.ColumnElement[int]] = sa.literal_column("1")


def _first_workspace(*conditions: Any) -> Any:
    found = sa.select(queue.c.workspace).where(is_waiting, *conditions).order_by(queue.c.workspace).limit(_ONE)
    return found.scalar_subquery().label("workspace")


# A loose index scan: one step for each workspace, however many executions wait in it.
_STEP: Final = sa.select(_first_workspace()).cte("step", recursive=True)
_NEXT_STEP: Final = sa.select(_first_workspace(queue.c.workspace > _STEP.c.workspace))
_STEPS: Final = _STEP.union_all(_NEXT_STEP.where(_STEP.c.workspace.is_not(None)))
_WORKSPACES: Final = Composed(sa.select(_STEPS.c.workspace).where(_STEPS.c.workspace.is_not(None)))
_ENDING: Final = Composed(sa.select(sa.exists().where(is_pending, queue.c.ends_only)))


def _due(time: Any, *conditions: Any) -> Any:
    """Rows whose time has come, the earliest first. now() is a stable function, so that the index is used."""
    return (
        sa.select(queue.c.execution_id)
        .where(*conditions, time.is_not(None), time <= func.now())
        .order_by(time)
        .limit(1_000)
        .with_for_update(skip_locked=True)
        .cte("due")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )


def _changed(due: Any, **values: Any) -> Composed:
    return Composed(
        sa.update(queue)
        .where(queue.c.execution_id == due.c.execution_id)
        .values(values)
        .returning(execution_id_text, queue.c.workspace, queue.c.ends_only)
    )


# The time stays: from then on the execution waits for a slot.
_WAKE: Final = _changed(_due(queue.c.wake_time, is_parked), state=int(State.PENDING))
_EXPIRE: Final = _changed(_due(queue.c.deadline_time, is_waiting), ends_only=True)


def _earliest(time: Any, *conditions: Any) -> Any:
    return sa.select(func.min(time)).where(*conditions, time.is_not(None)).scalar_subquery()


_NEXT_TIME: Final = func.least(_earliest(queue.c.wake_time, is_parked), _earliest(queue.c.deadline_time, is_waiting))
_NEXT: Final = Composed(sa.select(sa.cast(sa.extract("epoch", _NEXT_TIME - func.clock_timestamp()), sa.Double)))

_PARKED: Final = locked_leases(State.PARKED)
_WAKE_PARKED: Final = Composed(
    sa.update(queue)
    .where(queue.c.execution_id == _PARKED.c.execution_id, queue.c.workspace == sa.bindparam("of", type_=sa.Text))
    .values(state=int(State.PENDING), wake_time=func.clock_timestamp())
    .returning(execution_id_text, queue.c.workspace, queue.c.ends_only)
)
_HELD: Final = Composed(sa.select(execution_id_text, queue.c.epoch).where(is_asked_for, is_held))

_CLAIMED: Final = locked_leases(State.CLAIMED, skip_locked=True)
_MARK: Final = Composed(
    sa.update(queue).where(queue.c.execution_id == _CLAIMED.c.execution_id).values(state=int(State.DISPATCHED))
)

# Grants that were committed but never acknowledged: the dispatcher may have died before it sent them.
_LOST_GRANTS: Final = Composed(
    sa.select(queue.c.holder, execution_id_text, queue.c.epoch)
    .where(is_in(State.CLAIMED), queue.c.granted_time < func.now() - seconds(sa.bindparam("older_than")))
    .limit(5_000)
)


def _age(since: Any, condition: Any) -> Any:
    """The age of the oldest of these rows in seconds."""
    return sa.cast(func.coalesce(sa.extract("epoch", func.now() - func.min(since).filter(condition)), 0), sa.Double)


_MEASURE: Final = Composed(
    sa.select(
        queue.c.workspace,
        func.count().filter(is_waiting),
        func.count().filter(is_going),
        _age(queue.c.enqueue_time, is_waiting),
        _age(queue.c.granted_time, is_going),
    )
    .where(sa.or_(is_waiting, is_going))
    .group_by(queue.c.workspace)
)

# Deleted in pieces, so that no statement locks many rows at once.
_OLD: Final = (
    sa.select(requests.c.workspace, requests.c.request_id)
    .where(requests.c.create_time < func.now() - seconds(sa.bindparam("older_than")))
    .limit(5_000)
    .cte("old")
)
_FORGET_REQUESTS: Final = Composed(
    sa.delete(requests).where(requests.c.workspace == _OLD.c.workspace, requests.c.request_id == _OLD.c.request_id)
)


_DEAD: Final = (
    sa.select(queue.c.execution_id)
    .where(is_dead, queue.c.failure_time < func.now() - seconds(sa.bindparam("older_than")))
    .limit(1_000)
    .with_for_update(skip_locked=True)
    .cte("dead")
    .prefix_with("MATERIALIZED", dialect="postgresql")
)
_FORGET_DEAD_LETTERS: Final = Composed(sa.delete(queue).where(queue.c.execution_id == _DEAD.c.execution_id))


_OLD_REQUEUES: Final = (
    sa.select(requeues.c.execution_id, requeues.c.failure_time)
    .where(requeues.c.resolve_time < func.now() - seconds(sa.bindparam("older_than")))
    .limit(1_000)
    .cte("old_requeues")
)
_FORGET_REQUEUES: Final = Composed(
    sa.delete(requeues).where(
        requeues.c.execution_id == _OLD_REQUEUES.c.execution_id, requeues.c.failure_time == _OLD_REQUEUES.c.failure_time
    )
)


_UNTOLD: Final = Composed(
    sa.select(
        execution_id_text,
        queue.c.start,
        func.coalesce(queue.c.failure_reason, ""),
        func.coalesce(queue.c.failure_message, ""),
        sa.cast(sa.extract("epoch", queue.c.failure_time) * 1_000_000, sa.BigInteger),
    )
    .where(is_untold, queue.c.execution_id > sa.cast(sa.bindparam("after", type_=sa.Text), queue.c.execution_id.type))
    .order_by(queue.c.execution_id)
    .limit(200)
)
_NOTE_TOLD: Final = Composed(sa.update(queue).where(is_asked_for, is_dead).values(parent_told=True))


_IS_LIVE: Final = sa.exists().where(
    coordinator_sessions.c.instance_id == queue.c.holder, coordinator_sessions.c.state == "LIVE"
)
_UNHELD: Final = Composed(sa.select(queue.c.holder).where(is_held, ~_IS_LIVE).distinct())

_PAYLOAD: Final = func.unnest(sa.bindparam("payloads", type_=ARRAY(sa.Text))).column_valued("payload")
_NOTIFY: Final = Composed(sa.select(func.count(func.pg_notify(sa.bindparam("channel", type_=sa.Text), _PAYLOAD))))


class PostgresHousekeeping:
    def __init__(
        self, database: Database, *, lost_grant_seconds: float, request_key_seconds: float, dead_letter_seconds: float
    ) -> None:
        self._database = database
        self._lost_grant_seconds = lost_grant_seconds
        self._request_key_seconds = request_key_seconds
        self._dead_letter_seconds = dead_letter_seconds

    async def workspaces_with_work(self) -> tuple[list[str], bool]:
        """Workspaces in which something waits for a slot, and whether anything waits to be ended."""
        workspaces, ending = await self._database.pipeline([_WORKSPACES(), _ENDING()])
        return [row[0] for row in workspaces], bool(ending[0][0])

    async def wake(self) -> tuple[list[Requeued], float | None]:
        """Wake the executions that are due. Also returns the seconds until the next one is due."""
        crash_point("dispatcher.wake.before_commit")
        woken, expired, following = await self._database.pipeline([_WAKE(), _EXPIRE(), _NEXT()])
        crash_point("dispatcher.wake.after_commit")
        return [Requeued(*row) for row in (*woken, *expired)], following[0][0]

    async def wake_parked(self, workspace: str, leases: Sequence[tuple[str, int]]) -> tuple[list[Requeued], list[str]]:
        """Wake those that are still parked by these leases. Also returns those that are held under them.

        The first statement looks for those that are held. So one that is parked meanwhile is woken by the second."""
        ids, epochs = lease_arrays(leases)
        held, woken = await self._database.pipeline(
            [_HELD(execution_ids=ids), _WAKE_PARKED(execution_ids=ids, epochs=epochs, of=workspace)]
        )
        given = dict(leases)
        return [Requeued(*row) for row in woken], [row[0] for row in held if given[row[0]] == row[1]]

    async def mark_dispatched(self, leases: Sequence[tuple[str, int]]) -> None:
        crash_point("dispatcher.mark.before_commit")
        ids, epochs = lease_arrays(leases)
        await self._database.execute(*_MARK(execution_ids=ids, epochs=epochs))
        crash_point("dispatcher.mark.after_commit")

    async def lost_grants(self) -> dict[str, list[tuple[str, int]]]:
        by_holder: dict[str, list[tuple[str, int]]] = {}
        for holder, *lease in await self._database.fetch(*_LOST_GRANTS(older_than=self._lost_grant_seconds)):
            by_holder.setdefault(holder, []).append((lease[0], lease[1]))
        return by_holder

    async def holders_gone(self) -> list[str]:
        """Instances that hold executions and are not live."""
        return [row[0] for row in await self._database.fetch(*_UNHELD())]

    async def untold(self, after: str) -> list[GivenUp]:
        """Some of the dead letters whose parents have yet to learn of them, behind this id."""
        return [GivenUp(*row) for row in await self._database.fetch(*_UNTOLD(after=after))]

    async def note_told(self, execution_ids: Sequence[str]) -> None:
        crash_point("dispatcher.note_told.before_commit")
        await self._database.execute(*_NOTE_TOLD(execution_ids=Texts(execution_ids)))
        crash_point("dispatcher.note_told.after_commit")

    async def measure(self) -> list[Measure]:
        return [Measure(*row) for row in await self._database.fetch(*_MEASURE())]

    async def forget_requests(self) -> int:
        """Delete some that are older; returns how many."""
        return await self._database.execute(*_FORGET_REQUESTS(older_than=self._request_key_seconds))

    async def forget_dead_letters(self) -> int:
        """Delete some that are older; returns how many."""
        return await self._database.execute(*_FORGET_DEAD_LETTERS(older_than=self._dead_letter_seconds))

    async def forget_requeues(self) -> int:
        """Delete some that are as old as dead letters that are deleted; returns how many."""
        return await self._database.execute(*_FORGET_REQUEUES(older_than=self._dead_letter_seconds))

    async def notify(self, channel: str, payloads: Sequence[str]) -> None:
        await self._database.fetch(*_NOTIFY(channel=channel, payloads=Texts(payloads)))
