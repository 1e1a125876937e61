"""The tables of the coordinator, for composed statements. `migrations/` makes them, and says what each column means; a
test compares the two. The columns of `executions` and `runs` are those of `core/projection.py`."""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    Uuid,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB

from services.chassis.postgres.columns import TIME, key, needed, optional
from services.chassis.session.tables import session_table

metadata: Final = MetaData(schema="coordinator")
_ID: Final = Uuid(as_uuid=False)


def _output() -> list[Column[Any]]:
    """An output is stored in the row, or its reference is."""
    return [
        *optional(LargeBinary, "output"),
        *optional(Text, "output_key output_sha256"),
        *optional(BigInteger, "output_bytes"),
    ]


journal: Final = Table(
    "journal",
    metadata,
    *key(_ID, "execution_id"),
    *key(Integer, "last_seq"),
    *needed(BigInteger, "epoch"),
    *needed(LargeBinary, "events"),
    postgresql_partition_by="RANGE (execution_id)",
)

snapshots: Final = Table(
    "snapshots",
    metadata,
    *key(_ID, "execution_id"),
    *key(Integer, "last_seq"),
    *needed(Text, "format"),
    *needed(Boolean, "is_whole"),
    *needed(LargeBinary, "data"),
    postgresql_partition_by="RANGE (execution_id)",
)

executions: Final = Table(
    "executions",
    metadata,
    *key(_ID, "execution_id"),
    *needed(BigInteger, "epoch"),
    *needed(Integer, "last_seq version priority trigger_type runs retries"),
    *needed(BigInteger, "cost_tokens"),
    *needed(TIME, "create_time start_time"),
    *optional(TIME, "grant_time end_time deadline_time"),
    *needed(Text, "state workspace workflow version_id holder caller request_id traceparent"),
    *needed(Text, "parent_execution_id origin_execution_id"),
    *needed(JSONB, "labels"),
    *optional(Text, "error_node error_type error_message"),
    *optional(JSONB, "summary"),
    *needed(LargeBinary, "input"),
    *_output(),
    *needed(Text, "imported_execution_id"),
    *optional(Text, "import_request_id"),
    *optional(LargeBinary, "import_digest imported_definition imported_references"),
    *optional(BigInteger, "imported_bytes"),
    postgresql_partition_by="RANGE (execution_id)",
)
Index("executions_workspace", executions.c.workspace, executions.c.execution_id)
_PARENT: Final = func.nullif(executions.c.parent_execution_id, "")
Index("executions_parent", _PARENT, executions.c.execution_id, postgresql_where=_PARENT.is_not(None))
_ORIGIN: Final = func.nullif(executions.c.origin_execution_id, "")
Index("executions_origin", _ORIGIN, executions.c.execution_id, postgresql_where=_ORIGIN.is_not(None))
Index(
    "executions_imported",
    executions.c.workspace,
    executions.c.import_request_id,
    postgresql_where=executions.c.imported_execution_id != "",
)

runs: Final = Table(
    "runs",
    metadata,
    *key(_ID, "execution_id"),
    *key(Integer, "number"),
    *needed(Integer, "iteration generation attempt"),
    *needed(BigInteger, "epoch cost_tokens"),
    *needed(Double, "progress"),
    *needed(Boolean, "is_taken_back"),
    *needed(TIME, "create_time"),
    *optional(TIME, "start_time end_time heartbeat_time retry_time"),
    *needed(Text, "state node module instance_id runner traceparent effect_key progress_message branch"),
    *optional(Text, "error_class error_type error_message error_fingerprint"),
    *optional(LargeBinary, "inputs_hash config_hash"),
    *_output(),
    postgresql_partition_by="RANGE (execution_id)",
)

approvals: Final = Table(
    "approvals",
    metadata,
    *key(_ID, "execution_id"),
    *key(Integer, "number"),
    *needed(Integer, "required"),
    *needed(TIME, "create_time"),
    *optional(TIME, "expire_time"),
    *needed(Text, "state workspace workflow node title"),
    *needed(LargeBinary, "form"),
    *needed(JSONB, "assignees decisions"),
    postgresql_partition_by="RANGE (execution_id)",
)
Index("approvals_workspace", approvals.c.workspace, approvals.c.execution_id, approvals.c.number)

circuits: Final = Table(
    "circuits",
    metadata,
    *key(Text, "workspace target"),
    *needed(Text, "state"),
    *needed(BigInteger, "generation"),
    *needed(Integer, "openings probes_answered"),
    *needed(JSONB, "outcomes permits waiting"),
    *optional(TIME, "open_time retry_time last_failure_time"),
)

dead_letters: Final = Table(
    "dead_letters",
    metadata,
    *key(_ID, "execution_id"),
    *key(Integer, "number"),
    *needed(Integer, "version iteration generation attempts"),
    *needed(TIME, "quarantine_time"),
    *optional(TIME, "resolve_time"),
    *needed(Text, "workspace workflow node module reason resolution reviewer notes"),
    *optional(LargeBinary, "rendered"),
    *optional(Text, "error_class error_type error_message error_fingerprint"),
)
Index(
    "dead_letters_listed",
    dead_letters.c.workspace,
    dead_letters.c.quarantine_time,
    dead_letters.c.execution_id,
    dead_letters.c.number,
)

Index("dead_letters_age", dead_letters.c.quarantine_time, postgresql_using="brin")

runner_sessions: Final = session_table("runner_sessions", metadata)
