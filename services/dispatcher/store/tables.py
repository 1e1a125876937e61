"""The tables of the dispatcher, for composed statements. `migrations/` makes them, and says what each column means; a
test compares the two."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
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

from services.chassis.session.tables import session_table
from services.dispatcher.core.items import State

metadata: Final = MetaData(schema="dispatcher")
_TIME: Final = DateTime(timezone=True)

epochs: Final = Sequence("epochs", metadata=metadata)

tenants: Final = Table(
    "tenants",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("executions_max", Integer, nullable=False),
    Column("queued_max", Integer, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("closed", Boolean, nullable=False),
    Column("lowered_epoch", BigInteger, nullable=False),
)

queue: Final = Table(
    "queue",
    metadata,
    Column("execution_id", Uuid(as_uuid=False), primary_key=True),
    Column("workspace", Text, nullable=False),
    Column("state", SmallInteger, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("attempts", SmallInteger, nullable=False),
    Column("urgent", Boolean, nullable=False),
    Column("ends_only", Boolean, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("holder", Text),
    Column("enqueue_time", _TIME, nullable=False),
    Column("granted_time", _TIME),
    Column("wake_time", _TIME),
    Column("deadline_time", _TIME),
    Column("failure_time", _TIME),
    Column("failure_reason", Text),
    Column("failure_message", Text),
    Column("request_id", Text),
    Column("start", LargeBinary, nullable=False),
)


def is_in(*states: State) -> ColumnElement[bool]:
    """The state of a row, as text of the statement: the planner takes a partial index only for what it can read."""
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
Index(
    "queue_deadlines",
    queue.c.deadline_time,
    postgresql_where=and_(is_waiting, queue.c.deadline_time.is_not(None)),
)
Index("queue_listed", queue.c.workspace, queue.c.execution_id)

# Many executions at once, given as `Texts`.
is_asked_for: Final = queue.c.execution_id == any_(
    cast(bindparam("execution_ids", type_=ARRAY(Text)), ARRAY(Uuid(as_uuid=False)))
)
execution_id_text: Final = cast(queue.c.execution_id, Text)

requests: Final = Table(
    "requests",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("request_id", Text, primary_key=True),
    Column("hash", LargeBinary, nullable=False),
    Column("execution_id", Uuid(as_uuid=False), nullable=False),
    Column("create_time", _TIME, nullable=False),
)
Index("requests_age", requests.c.create_time, postgresql_using="brin")

mailbox: Final = Table(
    "mailbox",
    metadata,
    Column("message_id", Text, primary_key=True),
    Column("execution_id", Uuid(as_uuid=False), nullable=False),
    Column("create_time", _TIME, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
Index("mailbox_of", mailbox.c.execution_id)

coordinator_sessions: Final = session_table("coordinator_sessions", metadata)
