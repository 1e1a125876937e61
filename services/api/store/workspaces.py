"""Workspaces in PostgreSQL. A change raises the revision; the row of a closed one stays for ever."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from services.api.app.ports import Actor, WorkspaceRecord
from services.api.store.audit import record, tell
from services.chassis.postgres.connection import Connection
from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point

_COLUMNS = "workspace, tier, executions_max, queued_max, revision, create_time, update_time, close_time"
_GET = f"SELECT {_COLUMNS} FROM workspaces WHERE workspace = %s"
_PAGE = f"""
SELECT {_COLUMNS} FROM workspaces
WHERE workspace > %s AND close_time IS NULL ORDER BY workspace LIMIT %s"""
_INSERT = f"""
INSERT INTO workspaces (workspace, tier, executions_max, queued_max, effect_secret)
VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING {_COLUMNS}"""
_CHANGE = f"""
UPDATE workspaces SET
    tier = coalesce(%(tier)s::smallint, tier),
    executions_max = coalesce(%(executions_max)s::integer, executions_max),
    queued_max = coalesce(%(queued_max)s::integer, queued_max),
    revision = revision + 1, update_time = now()
WHERE workspace = %(workspace)s AND close_time IS NULL AND %(revision)s::bigint IN (0, revision)
RETURNING {_COLUMNS}"""
_CLOSE = """
UPDATE workspaces SET close_time = now(), update_time = now(), revision = revision + 1
WHERE workspace = %s AND close_time IS NULL"""
_UNCONFIRMED = f"SELECT {_COLUMNS} FROM workspaces WHERE configured_revision < revision LIMIT 100"
_CONFIRM = "UPDATE workspaces SET configured_revision = %s WHERE workspace = %s AND configured_revision < %s"


class PostgresWorkspaces:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, workspace: str) -> WorkspaceRecord | None:
        row = await self._database.fetch_one(_GET, (workspace,))
        return None if row is None else WorkspaceRecord(*row)

    async def page(self, after: str, limit: int) -> Sequence[WorkspaceRecord]:
        return [WorkspaceRecord(*row) for row in await self._database.fetch(_PAGE, (after, limit))]

    async def add(
        self, actor: Actor, workspace: str, tier: int, executions_max: int, queued_max: int
    ) -> WorkspaceRecord | None:
        async def work(connection: Connection) -> WorkspaceRecord | None:
            values = (workspace, tier, executions_max, queued_max, secrets.token_bytes(32))
            row = await (await connection.execute(_INSERT, values)).fetchone()
            if row is None:
                return None
            await record(connection, actor, "CreateWorkspace", workspace, {"tier": tier})
            await tell(connection, f"workspace:{workspace}")
            crash_point("api.workspace.before_commit")
            return WorkspaceRecord(*row)

        return await self._database.transaction(work)

    async def change(
        self, actor: Actor, workspace: str, revision: int, values: Mapping[str, int]
    ) -> WorkspaceRecord | None:
        async def work(connection: Connection) -> WorkspaceRecord | None:
            empty: dict[str, int | None] = {"tier": None, "executions_max": None, "queued_max": None}
            given = {**empty, **values, "workspace": workspace, "revision": revision}
            row = await (await connection.execute(_CHANGE, given)).fetchone()
            if row is None:
                return None
            await record(connection, actor, "UpdateWorkspace", workspace, dict(values))
            await tell(connection, f"workspace:{workspace}")
            crash_point("api.workspace.before_commit")
            return WorkspaceRecord(*row)

        return await self._database.transaction(work)

    async def close(self, actor: Actor, workspace: str) -> bool:
        async def work(connection: Connection) -> bool:
            if (await connection.execute(_CLOSE, (workspace,))).rowcount == 0:
                return False
            await record(connection, actor, "DeleteWorkspace", workspace)
            await tell(connection, f"workspace:{workspace}")
            crash_point("api.workspace.before_commit")
            return True

        return await self._database.transaction(work)

    async def unconfirmed(self) -> Sequence[WorkspaceRecord]:
        return [WorkspaceRecord(*row) for row in await self._database.fetch(_UNCONFIRMED)]

    async def confirm(self, workspace: str, revision: int) -> None:
        await self._database.execute(_CONFIRM, (revision, workspace, revision))
