"""The tables of the dispatcher, for composed statements. `migrations/` makes them, and says what each column means; a
test compares the two."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Sequence,
    SmallInteger,
    Table,
    Text,
    Uuid,
    and_,
    any_,
    bindparam,
    cast,
    literal_column,
    not_,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.elements import ColumnElement

from services.chassis.postgres.columns import TIME, key, needed, optional
from services.chassis.session.tables import session_table
from services.dispatcher.core.items import State

metadata: Final = MetaData(schema="dispatcher")
_ID: Final = Uuid(as_uuid=False)

epochs: Final = Sequence("epochs", metadata=metadata)

tenants: Final = Table(
    "tenants",
    metadata,
    *key(Text, "workspace"),
    *needed(Integer, "executions_max queued_max"),
    *needed(BigInteger, "revision lowered_epoch"),
    *needed(Boolean, "closed"),
)

queue: Final = Table(
    "queue",
    metadata,
    *key(_ID, "execution_id"),
    *needed(Text, "workspace"),
    *needed(SmallInteger, "state priority attempts"),
    *needed(Boolean, "urgent ends_only"),
    *needed(BigInteger, "epoch"),
    *optional(Text, "holder request_id failure_reason failure_message"),
    *needed(TIME, "enqueue_time"),
    *optional(TIME, "granted_time wake_time deadline_time failure_time"),
    *needed(LargeBinary, "start"),
)


def is_in(*states: State) -> ColumnElement[bool]:
    """The states are literals in the statement: the planner uses a partial index only for a condition it can see."""
    return queue.c.state.in_([literal_column(str(int(state))) for state in states])


is_pending: Final = queue.c.state == literal_column(str(int(State.PENDING)))
is_parked: Final = queue.c.state == literal_column(str(int(State.PARKED)))
is_held: Final = is_in(State.CLAIMED, State.DISPATCHED)
is_waiting: Final = and_(is_pending, not_(queue.c.ends_only))
is_going: Final = and_(is_held, not_(queue.c.ends_only))

Index(
    "queue_waiting",
    queue.c.workspace,
    queue.c.urgent.desc(),
    queue.c.priority.desc(),
    queue.c.execution_id,
    postgresql_where=is_waiting,
)
Index("queue_ending", queue.c.execution_id, postgresql_where=and_(is_pending, queue.c.ends_only))
Index("queue_going", queue.c.workspace, postgresql_where=is_going)
Index("queue_held", queue.c.holder, postgresql_where=is_held)
Index("queue_wakes", queue.c.wake_time, postgresql_where=and_(is_parked, queue.c.wake_time.is_not(None)))
Index("queue_deadlines", queue.c.deadline_time, postgresql_where=and_(is_waiting, queue.c.deadline_time.is_not(None)))
Index("queue_listed", queue.c.workspace, queue.c.execution_id)

# `execution_ids` are given as `Texts`.
is_asked_for: Final = queue.c.execution_id == any_(
    cast(bindparam("execution_ids", type_=ARRAY(Text)), ARRAY(Uuid(as_uuid=False)))
)
execution_id_text: Final = cast(queue.c.execution_id, Text)

requests: Final = Table(
    "requests",
    metadata,
    *key(Text, "workspace request_id"),
    *needed(LargeBinary, "hash"),
    *needed(_ID, "execution_id"),
    *needed(TIME, "create_time"),
)
Index("requests_age", requests.c.create_time, postgresql_using="brin")

mailbox: Final = Table(
    "mailbox",
    metadata,
    *key(Text, "message_id"),
    *needed(_ID, "execution_id"),
    *needed(TIME, "create_time"),
    *needed(LargeBinary, "body"),
)
Index("mailbox_of", mailbox.c.execution_id)

coordinator_sessions: Final = session_table("coordinator_sessions", metadata)
