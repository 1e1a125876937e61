"""The tables of the dispatcher, for composed statements. `migrations/` makes them, and says what each column means; a
test compares the two."""

from collections.abc import Collection
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import CTE

from services.chassis.postgres.arrays import BigInts, Texts
from services.chassis.postgres.columns import TIME, key, needed, optional
from services.chassis.session.tables import session_table
from services.dispatcher.core.items import State

metadata: Final = sa.MetaData(schema="dispatcher")
_ID: Final = sa.Uuid(as_uuid=False)

epochs: Final = sa.Sequence("epochs", metadata=metadata)

tenants: Final = sa.Table(
    "tenants",
    metadata,
    *key(sa.Text, "workspace"),
    *needed(sa.Integer, "executions_max queued_max"),
    *needed(sa.BigInteger, "revision lowered_epoch"),
    *needed(sa.Boolean, "closed"),
)

queue: Final = sa.Table(
    "queue",
    metadata,
    *key(_ID, "execution_id"),
    *needed(sa.Text, "workspace"),
    *needed(sa.SmallInteger, "state priority attempts"),
    *needed(sa.Boolean, "urgent ends_only begun parent_told reopens"),
    *needed(sa.BigInteger, "epoch"),
    *optional(sa.Text, "holder request_id failure_reason failure_message resolution reviewer notes"),
    *needed(TIME, "enqueue_time"),
    *needed(sa.DateTime, "order_time"),
    *optional(TIME, "granted_time wake_time deadline_time failure_time resolve_time"),
    *needed(sa.LargeBinary, "start"),
    *optional(sa.LargeBinary, "shown_start"),
)


def is_in(*states: State, by_id: bool = False) -> ColumnElement[bool]:
    """The states are literals in the statement: the planner uses a partial index only for a condition it can see. It
    must not use one for rows that are found `by_id` (admission_statements.py)."""
    state = queue.c.state + sa.literal_column("0") if by_id else queue.c.state
    return state.in_([sa.literal_column(str(int(each))) for each in states])


is_pending: Final = queue.c.state == sa.literal_column(str(int(State.PENDING)))
is_dead: Final = queue.c.state == sa.literal_column(str(int(State.FAILED)))
is_parked: Final = queue.c.state == sa.literal_column(str(int(State.PARKED)))
is_held: Final = is_in(State.CLAIMED, State.DISPATCHED)
is_waiting: Final = is_pending & ~queue.c.ends_only
is_going: Final = is_held & ~queue.c.ends_only

sa.Index(
    "queue_waiting",
    queue.c.workspace,
    queue.c.urgent.desc(),
    queue.c.order_time,
    queue.c.execution_id,
    postgresql_where=is_waiting,
)
sa.Index("queue_ending", queue.c.execution_id, postgresql_where=is_pending & queue.c.ends_only)
sa.Index("queue_going", queue.c.workspace, postgresql_where=is_going)
sa.Index("queue_held", queue.c.holder, postgresql_where=is_held)
sa.Index("queue_wakes", queue.c.wake_time, postgresql_where=is_parked & queue.c.wake_time.is_not(None))
sa.Index("queue_deadlines", queue.c.deadline_time, postgresql_where=is_waiting & queue.c.deadline_time.is_not(None))
sa.Index("queue_dead", queue.c.failure_time, postgresql_where=is_dead)
is_untold: Final = is_dead & ~queue.c.parent_told
sa.Index("queue_untold", queue.c.execution_id, postgresql_where=is_untold)
sa.Index("queue_listed", queue.c.workspace, queue.c.execution_id)

# `execution_ids` are given as `Texts`.
_EXECUTION_IDS: Final = sa.cast(sa.bindparam("execution_ids", type_=ARRAY(sa.Text)), ARRAY(_ID))
_EPOCHS: Final = sa.bindparam("epochs", type_=ARRAY(sa.BigInteger))
is_asked_for: Final = queue.c.execution_id == sa.any_(_EXECUTION_IDS)
execution_id_text: Final = sa.cast(queue.c.execution_id, sa.Text)


def lease_arrays(leases: Collection[tuple[str, int]]) -> tuple[Texts, BigInts]:
    """The parameters `execution_ids` and `epochs`."""
    return Texts([each[0] for each in leases]), BigInts([each[1] for each in leases])


def locked_leases(*states: State, skip_locked: bool = False) -> CTE:
    """The rows of the leases given by `lease_arrays`, if they are in these states. They are locked in the order of
    their ids, as by every writer of several rows."""
    given = sa.func.unnest(_EXECUTION_IDS, _EPOCHS).table_valued("execution_id", "epoch").render_derived()
    return (
        sa.select(queue.c.execution_id)
        .join(given, sa.and_(queue.c.execution_id == given.c.execution_id, queue.c.epoch == given.c.epoch))
        .where(is_in(*states, by_id=True))
        .order_by(queue.c.execution_id)
        .with_for_update(of=queue, skip_locked=skip_locked)
        .cte("locked")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )


requests: Final = sa.Table(
    "requests",
    metadata,
    *key(sa.Text, "workspace request_id"),
    *needed(sa.LargeBinary, "hash"),
    *needed(_ID, "execution_id"),
    *needed(TIME, "create_time"),
)
sa.Index("requests_age", requests.c.create_time, postgresql_using="brin")

requeues: Final = sa.Table(
    "requeues",
    metadata,
    *key(_ID, "execution_id"),
    *key(TIME, "failure_time"),
    *needed(sa.Text, "workspace reviewer notes"),
    *needed(sa.SmallInteger, "attempts"),
    *needed(TIME, "resolve_time"),
    *needed(sa.LargeBinary, "start"),
    *optional(sa.Text, "failure_reason failure_message request_id"),
    *optional(sa.LargeBinary, "request_hash"),
)
sa.Index("requeues_listed", requeues.c.workspace, requeues.c.failure_time, requeues.c.execution_id)
sa.Index("requeues_age", requeues.c.resolve_time, postgresql_using="brin")

mailbox: Final = sa.Table(
    "mailbox",
    metadata,
    *key(sa.Text, "message_id"),
    *needed(_ID, "execution_id"),
    *needed(TIME, "create_time"),
    *needed(sa.LargeBinary, "body"),
)
sa.Index("mailbox_of", mailbox.c.execution_id)

coordinator_sessions: Final = session_table("coordinator_sessions", metadata)
