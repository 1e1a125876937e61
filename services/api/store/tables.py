"""The tables of api, for composed statements. `migrations/` makes them, and says what each column means; a test
compares the two."""

import uuid
from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from services.chassis.postgres.columns import TIME, key, needed, optional

metadata: Final = MetaData(schema="api")

workspaces: Final = Table(
    "workspaces",
    metadata,
    *key(Text, "workspace"),
    *needed(SmallInteger, "tier"),
    *needed(Integer, "executions_max queued_max"),
    *needed(BigInteger, "revision configured_revision"),
    *needed(LargeBinary, "effect_secret"),
    *needed(TIME, "create_time update_time"),
    *optional(TIME, "close_time"),
)
Index(
    "workspaces_unconfigured",
    workspaces.c.workspace,
    postgresql_where=workspaces.c.configured_revision < workspaces.c.revision,
)

api_keys: Final = Table(
    "api_keys",
    metadata,
    *key(Uuid, "key_id"),
    Column("key_hash", LargeBinary, nullable=False, unique=True),
    Column("workspace", Text, ForeignKey(workspaces.c.workspace)),
    *needed(Text, "role title"),
    *needed(TIME, "create_time"),
    *optional(TIME, "expire_time revoke_time"),
)
Index("api_keys_by_workspace", api_keys.c.workspace, api_keys.c.key_id)

workflows: Final = Table(
    "workflows",
    metadata,
    Column("workspace", Text, ForeignKey(workspaces.c.workspace), primary_key=True),
    *key(Text, "workflow"),
    *needed(Integer, "version"),
    *needed(BigInteger, "revision"),
    *needed(TIME, "create_time"),
    *optional(TIME, "archive_time"),
)

workflow_versions: Final = Table(
    "workflow_versions",
    metadata,
    *key(Uuid, "version_id"),
    *needed(Text, "workspace workflow source source_format"),
    *needed(Integer, "version"),
    *needed(LargeBinary, "definition definition_hash template_references"),
    *needed(TIME, "create_time"),
    UniqueConstraint("workspace", "workflow", "version"),
    ForeignKeyConstraint(
        ["workspace", "workflow"], [workflows.c.workspace, workflows.c.workflow], deferrable=True, initially="DEFERRED"
    ),
)

audit: Final = Table(
    "audit",
    metadata,
    *key(BigInteger, "audit_id"),
    *needed(TIME, "audit_time"),
    *optional(Text, "workspace"),
    *needed(Text, "actor action subject"),
    *needed(JSONB, "details"),
)
Index("audit_by_workspace", audit.c.workspace, audit.c.audit_id)

bulk_jobs: Final = Table(
    "bulk_jobs",
    metadata,
    *key(Uuid, "job_id"),
    Column("workspace", Text, ForeignKey(workspaces.c.workspace), nullable=False),
    *needed(Text, "request_id caller action filter reason from_node state message"),
    *needed(LargeBinary, "input_overrides"),
    *needed(Integer, "matched done failed epoch"),
    *needed(Boolean, "is_counted is_cut"),
    *needed(JSONB, "refused samples"),
    *needed(TIME, "as_of_time create_time"),
    *optional(TIME, "stop_time end_time lease_time"),
    *optional(Uuid, "holder"),
)
Index(
    "bulk_jobs_by_request",
    bulk_jobs.c.workspace,
    bulk_jobs.c.request_id,
    unique=True,
    postgresql_where=bulk_jobs.c.request_id != "",
)
Index("bulk_jobs_by_workspace", bulk_jobs.c.workspace, bulk_jobs.c.job_id)
Index("bulk_jobs_running", bulk_jobs.c.job_id, postgresql_where=bulk_jobs.c.state == "RUNNING")
Index("bulk_jobs_ended", bulk_jobs.c.end_time, postgresql_where=bulk_jobs.c.end_time.is_not(None))

bulk_job_pages: Final = Table(
    "bulk_job_pages",
    metadata,
    Column("job_id", Uuid, ForeignKey(bulk_jobs.c.job_id), primary_key=True),
    *key(Integer, "first_place"),
    *needed(ARRAY(Uuid), "execution_ids"),
)


def uuid_of(text: str) -> uuid.UUID | None:
    """None: no row has this id."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
