"""The tables of api, for composed statements. `migrations/` makes them, and says what each column means; a test
compares the two."""

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
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
from sqlalchemy.dialects.postgresql import JSONB

metadata: Final = MetaData(schema="api")
_TIME: Final = DateTime(timezone=True)

workspaces: Final = Table(
    "workspaces",
    metadata,
    Column("workspace", Text, primary_key=True),
    Column("tier", SmallInteger, nullable=False),
    Column("executions_max", Integer, nullable=False),
    Column("queued_max", Integer, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("configured_revision", BigInteger, nullable=False),
    Column("effect_secret", LargeBinary, nullable=False),
    Column("create_time", _TIME, nullable=False),
    Column("update_time", _TIME, nullable=False),
    Column("close_time", _TIME),
)
Index(
    "workspaces_unconfigured",
    workspaces.c.workspace,
    postgresql_where=workspaces.c.configured_revision < workspaces.c.revision,
)

api_keys: Final = Table(
    "api_keys",
    metadata,
    Column("key_id", Uuid, primary_key=True),
    Column("key_hash", LargeBinary, nullable=False, unique=True),
    Column("role", Text, nullable=False),
    Column("workspace", Text, ForeignKey(workspaces.c.workspace)),
    Column("title", Text, nullable=False),
    Column("create_time", _TIME, nullable=False),
    Column("expire_time", _TIME),
    Column("revoke_time", _TIME),
)
Index("api_keys_by_workspace", api_keys.c.workspace, api_keys.c.key_id)

workflows: Final = Table(
    "workflows",
    metadata,
    Column("workspace", Text, ForeignKey(workspaces.c.workspace), primary_key=True),
    Column("workflow", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("create_time", _TIME, nullable=False),
    Column("archive_time", _TIME),
)

workflow_versions: Final = Table(
    "workflow_versions",
    metadata,
    Column("version_id", Uuid, primary_key=True),
    Column("workspace", Text, nullable=False),
    Column("workflow", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("definition", LargeBinary, nullable=False),
    Column("definition_hash", LargeBinary, nullable=False),
    Column("template_references", LargeBinary, nullable=False),
    Column("source", Text, nullable=False),
    Column("source_format", Text, nullable=False),
    Column("create_time", _TIME, nullable=False),
    UniqueConstraint("workspace", "workflow", "version"),
    ForeignKeyConstraint(
        ["workspace", "workflow"],
        [workflows.c.workspace, workflows.c.workflow],
        deferrable=True,
        initially="DEFERRED",
    ),
)

audit: Final = Table(
    "audit",
    metadata,
    Column("audit_id", BigInteger, primary_key=True),
    Column("audit_time", _TIME, nullable=False),
    Column("workspace", Text),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("details", JSONB, nullable=False),
)
Index("audit_by_workspace", audit.c.workspace, audit.c.audit_id)
