"""The tables of the coordinator, for composed statements. `migrations/` makes them, and says what each column means; a
test compares the two. The columns of `executions` and `runs` are those of `core/projection.py`."""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeEngine

from services.chassis.session.tables import session_table

metadata: Final = MetaData(schema="coordinator")
_TIME: Final = DateTime(timezone=True)


def _needed(type_: type[TypeEngine[Any]] | TypeEngine[Any], names: str) -> list[Column[Any]]:
    return [Column(name, type_, nullable=False) for name in names.split()]


def _optional(type_: type[TypeEngine[Any]] | TypeEngine[Any], names: str) -> list[Column[Any]]:
    return [Column(name, type_) for name in names.split()]


def _output() -> list[Column[Any]]:
    """Inline, or where it is kept."""
    return [
        *_optional(LargeBinary, "output"),
        *_optional(Text, "output_key output_sha256"),
        *_optional(BigInteger, "output_bytes"),
    ]


journal: Final = Table(
    "journal",
    metadata,
    Column("execution_id", Uuid(as_uuid=False), primary_key=True),
    Column("last_seq", Integer, primary_key=True),
    *_needed(BigInteger, "epoch"),
    *_needed(LargeBinary, "events"),
    postgresql_partition_by="RANGE (execution_id)",
)

executions: Final = Table(
    "executions",
    metadata,
    Column("execution_id", Uuid(as_uuid=False), primary_key=True),
    *_needed(BigInteger, "epoch"),
    *_needed(Integer, "last_seq version priority trigger_type runs retries"),
    *_needed(BigInteger, "cost_tokens"),
    *_needed(_TIME, "create_time start_time"),
    *_optional(_TIME, "grant_time end_time deadline_time"),
    *_needed(Text, "state workspace workflow version_id holder caller request_id parent_execution_id"),
    *_needed(Text, "traceparent"),
    *_needed(JSONB, "labels"),
    *_optional(Text, "error_node error_type error_message"),
    *_optional(JSONB, "summary"),
    *_needed(LargeBinary, "input"),
    *_output(),
    postgresql_partition_by="RANGE (execution_id)",
)
Index("executions_workspace", executions.c.workspace, executions.c.execution_id)

runs: Final = Table(
    "runs",
    metadata,
    Column("execution_id", Uuid(as_uuid=False), primary_key=True),
    Column("number", Integer, primary_key=True),
    *_needed(Integer, "iteration generation attempt"),
    *_needed(BigInteger, "epoch cost_tokens"),
    *_needed(Double, "progress"),
    *_needed(_TIME, "create_time"),
    *_optional(_TIME, "start_time end_time heartbeat_time retry_time"),
    *_needed(Text, "state node module instance_id runner traceparent effect_key progress_message branch"),
    *_optional(Text, "error_class error_type error_message error_fingerprint"),
    *_optional(LargeBinary, "inputs_hash config_hash"),
    *_output(),
    postgresql_partition_by="RANGE (execution_id)",
)

runner_sessions: Final = session_table("runner_sessions", metadata)
