"""Workspaces in PostgreSQL. A change raises the revision; the row of a closed one stays for ever."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from sqlalchemy import BigInteger, bindparam, func, literal_column, select, update
from sqlalchemy.dialects.postgresql import insert

from services.api.app.ports import WorkspaceRecord
from services.api.store.audit import record
from services.api.store.tables import workspaces
from services.chassis.identity.callers import Identity
from services.chassis.postgres.compiled import Composed
from services.chassis.postgres.connection import Connection
from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point

_COLUMNS = tuple(workspaces.c[name] for name in WorkspaceRecord._fields)
_IS_NAMED = workspaces.c.workspace == bindparam("named")
_IS_OPEN = workspaces.c.close_time.is_(None)
_GET = Composed(select(*_COLUMNS).where(_IS_NAMED))
_PAGE = Composed(
    select(*_COLUMNS)
    .where(workspaces.c.workspace > bindparam("after"), _IS_OPEN)
    .order_by(workspaces.c.workspace)
    .limit(bindparam("limit"))
)
_EFFECT_SECRET = Composed(select(workspaces.c.effect_secret).where(_IS_NAMED))
_GIVEN = ("workspace", "tier", "executions_max", "queued_max", "effect_secret")
_INSERT = Composed(
    insert(workspaces).values({name: bindparam(name) for name in _GIVEN}).on_conflict_do_nothing().returning(*_COLUMNS)
)
_SETTABLE = (workspaces.c.tier, workspaces.c.executions_max, workspaces.c.queued_max)
_RAISED = {"revision": workspaces.c.revision + 1, "update_time": func.now()}
_CHANGE = Composed(
    update(workspaces)
    .where(
        _IS_NAMED, _IS_OPEN, bindparam("expected", type_=BigInteger).in_([literal_column("0"), workspaces.c.revision])
    )
    .values({each: func.coalesce(bindparam(f"new_{each.name}", type_=each.type), each) for each in _SETTABLE})
    .values(_RAISED)
    .returning(*_COLUMNS)
)
_CLOSE = Composed(update(workspaces).where(_IS_NAMED, _IS_OPEN).values(close_time=func.now(), **_RAISED))
_UNCONFIRMED = Composed(select(*_COLUMNS).where(workspaces.c.configured_revision < workspaces.c.revision).limit(100))
_CONFIRM = Composed(
    update(workspaces)
    .where(_IS_NAMED, workspaces.c.configured_revision < bindparam("confirmed"))
    .values(configured_revision=bindparam("confirmed"))
)


class PostgresWorkspaces:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, workspace: str) -> WorkspaceRecord | None:
        row = await self._database.fetch_one(*_GET(named=workspace))
        return None if row is None else WorkspaceRecord(*row)

    async def effect_secret(self, workspace: str) -> bytes | None:
        row = await self._database.fetch_one(*_EFFECT_SECRET(named=workspace))
        return None if row is None else bytes(row[0])

    async def page(self, after: str, limit: int) -> Sequence[WorkspaceRecord]:
        rows = await self._database.fetch(*_PAGE(after=after, limit=limit))
        return [WorkspaceRecord(*row) for row in rows]

    async def add(self, actor: Identity, workspace: str, values: Mapping[str, int]) -> WorkspaceRecord | None:
        async def work(connection: Connection) -> WorkspaceRecord | None:
            statement = _INSERT(workspace=workspace, effect_secret=secrets.token_bytes(32), **values)
            row = await (await connection.execute(*statement)).fetchone()
            if row is None:
                return None
            await _record_change(connection, actor, "CreateWorkspace", workspace, {"tier": values["tier"]})
            return WorkspaceRecord(*row)

        return await self._database.transaction(work)

    async def change(
        self, actor: Identity, workspace: str, revision: int, values: Mapping[str, int]
    ) -> WorkspaceRecord | None:
        async def work(connection: Connection) -> WorkspaceRecord | None:
            given = {f"new_{column.name}": values.get(column.name) for column in _SETTABLE}
            statement = _CHANGE(named=workspace, expected=revision, **given)
            row = await (await connection.execute(*statement)).fetchone()
            if row is None:
                return None
            await _record_change(connection, actor, "UpdateWorkspace", workspace, values)
            return WorkspaceRecord(*row)

        return await self._database.transaction(work)

    async def close(self, actor: Identity, workspace: str) -> bool:
        async def work(connection: Connection) -> bool:
            if (await connection.execute(*_CLOSE(named=workspace))).rowcount == 0:
                return False
            await _record_change(connection, actor, "DeleteWorkspace", workspace, {})
            return True

        return await self._database.transaction(work)

    async def unconfirmed(self) -> Sequence[WorkspaceRecord]:
        return [WorkspaceRecord(*row) for row in await self._database.fetch(*_UNCONFIRMED())]

    async def confirm(self, workspace: str, revision: int) -> None:
        await self._database.execute(*_CONFIRM(named=workspace, confirmed=revision))


async def _record_change(
    connection: Connection, actor: Identity, action: str, workspace: str, details: Mapping[str, int]
) -> None:
    await record(connection, actor, action, workspace, details, f"workspace:{workspace}")
    crash_point("api.workspace.before_commit")
