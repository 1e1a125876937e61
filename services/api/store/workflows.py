"""Workflows and their versions in PostgreSQL.

Applies of one workflow are one after the other (its row is locked first), so versions are 1, 2, 3… without a gap
and the same definition applied twice at once makes one version.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from typing import Any, Final

from services.api.app.ports import (
    Actor,
    Applied,
    NewVersion,
    StartableRecord,
    VersionRecord,
    WorkflowRecord,
)
from services.api.store.audit import record, tell
from services.chassis.postgres.connection import Connection
from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point

REFUSED, CREATED, NEW_VERSION, UNCHANGED = range(4)

_MAKE = "INSERT INTO workflows (workspace, workflow, version) VALUES (%s, %s, 0) ON CONFLICT DO NOTHING"
_LOCK = """
SELECT version, revision, archive_time IS NOT NULL FROM workflows
WHERE workspace = %s AND workflow = %s FOR UPDATE"""
_HASH = (
    "SELECT definition_hash FROM workflow_versions WHERE workspace = %s AND workflow = %s AND version = %s"
)
_INSERT = """
INSERT INTO workflow_versions (
    version_id, workspace, workflow, version, definition, definition_hash, template_references, source, source_format
) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"""
_ADVANCE = "UPDATE workflows SET version = %s, revision = %s WHERE workspace = %s AND workflow = %s"
_DROP_EMPTY = "DELETE FROM workflows WHERE workspace = %s AND workflow = %s AND version = 0"
_COLUMNS: Final = (
    "f.workflow, v.version, v.definition, f.revision, f.create_time, v.create_time, f.archive_time"
)
_FROM: Final = (
    "FROM workflows f JOIN workflow_versions v ON v.workspace = f.workspace AND v.workflow = f.workflow"
)
_SELECT: Final = f"SELECT {_COLUMNS} {_FROM}"
_GET = f"""
SELECT {_COLUMNS}, v.source, v.source_format {_FROM}
    AND v.version = CASE %s::integer WHEN 0 THEN f.version ELSE %s::integer END
WHERE f.workspace = %s AND f.workflow = %s"""
_PAGE = f"""{_SELECT} AND v.version = f.version
WHERE f.workspace = %s AND f.workflow > %s AND (%s OR f.archive_time IS NULL) ORDER BY f.workflow LIMIT %s"""
_VERSIONS = f"""{_SELECT}
WHERE f.workspace = %s AND f.workflow = %s AND (%s::integer = 0 OR v.version < %s::integer)
ORDER BY v.version DESC LIMIT %s"""
_ARCHIVE = """
UPDATE workflows SET archive_time = CASE WHEN %s THEN now() END, revision = revision + 1
WHERE workspace = %s AND workflow = %s AND (archive_time IS NULL) = %s"""
_STARTABLE = """
SELECT v.version_id::text, v.version, v.definition, f.archive_time IS NOT NULL,
    w.tier, w.executions_max, w.queued_max, w.revision
FROM workflows f JOIN workspaces w ON w.workspace = f.workspace
JOIN workflow_versions v ON v.workspace = f.workspace AND v.workflow = f.workflow
    AND v.version = CASE %s::integer WHEN 0 THEN f.version ELSE %s::integer END
WHERE f.workspace = %s AND f.workflow = %s"""
_VERSION = """
SELECT v.workspace, v.workflow, v.version, v.definition, v.template_references, w.effect_secret
FROM workflow_versions v JOIN workspaces w ON w.workspace = v.workspace WHERE v.version_id = %s"""


class PostgresWorkflows:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def apply(self, actor: Actor, workflow: str, new: NewVersion, etag: str) -> Applied:
        async def work(connection: Connection) -> Applied:
            change = await _apply(connection, actor, workflow, new, etag)
            if isinstance(change, str):
                # Nothing of a refused apply may stay, the empty row of a new workflow included.
                await connection.execute(_DROP_EMPTY, (actor.workspace, workflow))
                return Applied(REFUSED, None, change)
            cursor = await connection.execute(_GET, (0, 0, actor.workspace, workflow), binary=True)
            row = await cursor.fetchone()
            assert row is not None
            crash_point("api.workflow.before_commit")
            return Applied(change, WorkflowRecord(*row))

        return await self._database.transaction(work)

    async def get(self, workspace: str, workflow: str, version: int) -> WorkflowRecord | None:
        row = await self._database.fetch_one(_GET, (version, version, workspace, workflow))
        return None if row is None else WorkflowRecord(*row)

    async def page(
        self, workspace: str, after: str, limit: int, *, with_archived: bool
    ) -> Sequence[WorkflowRecord]:
        rows = await self._database.fetch(_PAGE, (workspace, after, with_archived, limit))
        return [WorkflowRecord(*row) for row in rows]

    async def versions(
        self, workspace: str, workflow: str, before: int, limit: int
    ) -> Sequence[WorkflowRecord]:
        rows = await self._database.fetch(_VERSIONS, (workspace, workflow, before, before, limit))
        return [WorkflowRecord(*row) for row in rows]

    async def set_archived(self, actor: Actor, workflow: str, *, is_archived: bool) -> WorkflowRecord | None:
        async def work(connection: Connection) -> WorkflowRecord | None:
            values = (is_archived, actor.workspace, workflow, is_archived)
            if (await connection.execute(_ARCHIVE, values)).rowcount:
                action = "ArchiveWorkflow" if is_archived else "RestoreWorkflow"
                await record(connection, actor, action, workflow)
                await tell(connection, f"workflow:{actor.workspace}/{workflow}")
            cursor = await connection.execute(_GET, (0, 0, actor.workspace, workflow), binary=True)
            row = await cursor.fetchone()
            crash_point("api.workflow.before_commit")
            return None if row is None else WorkflowRecord(*row)

        return await self._database.transaction(work)

    async def startable(self, workspace: str, workflow: str, version: int) -> StartableRecord | None:
        row = await self._database.fetch_one(_STARTABLE, (version, version, workspace, workflow))
        return None if row is None else StartableRecord(*row)

    async def version(self, version_id: str) -> VersionRecord | None:
        try:
            identity = uuid.UUID(version_id)
        except ValueError:
            return None
        row = await self._database.fetch_one(_VERSION, (identity,))
        return None if row is None else VersionRecord(*row)


async def _apply(
    connection: Connection, actor: Actor, workflow: str, new: NewVersion, etag: str
) -> int | str:
    """The change that was made, or the reason against it."""
    name = (actor.workspace, workflow)
    await connection.execute(_MAKE, name)
    locked: tuple[Any, ...] | None = await (await connection.execute(_LOCK, name)).fetchone()
    assert locked is not None
    version, revision, is_archived = locked
    if is_archived:
        return "WORKFLOW_ARCHIVED"
    definition_hash = hashlib.sha256(new.definition).digest()
    newest = await (await connection.execute(_HASH, (*name, version), binary=True)).fetchone()
    # Before the etag: whoever repeats a call whose answer was lost has an old etag, and what he wants is there.
    if newest is not None and newest[0] == definition_hash:
        return UNCHANGED
    if etag and (version == 0 or etag != str(revision)):
        return "ETAG_MISMATCH"
    written = (new.template_references, new.source, new.source_format)
    values = (uuid.UUID(new.version_id), *name, version + 1, new.definition, definition_hash, *written)
    await connection.execute(_INSERT, values)
    await connection.execute(_ADVANCE, (version + 1, revision + min(version, 1), *name))
    await record(connection, actor, "ApplyWorkflow", workflow, {"version": version + 1})
    await tell(connection, f"workflow:{actor.workspace}/{workflow}")
    return NEW_VERSION if version else CREATED
