"""API keys in PostgreSQL: hashes only."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Boolean, Text, bindparam, false, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from services.api.app.ports import KeyIdTaken, KeyRecord, NewKey
from services.api.store.audit import record
from services.api.store.tables import api_keys, uuid_of, workspaces
from services.chassis.identity.callers import CallerKind, Identity
from services.chassis.postgres.compiled import Composed
from services.chassis.postgres.connection import Connection
from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point

# The columns have the order of KeyRecord. The last one says whether the workspace is closed.
_COLUMNS = tuple(api_keys.c[name] for name in KeyRecord._fields if name != "is_workspace_closed")
_FIND = Composed(
    select(*_COLUMNS, workspaces.c.close_time.is_not(None))
    .select_from(api_keys.outerjoin(workspaces))
    .where(api_keys.c.key_hash == bindparam("key_hash"))
)
_INSERT = Composed(
    insert(api_keys)
    .from_select(
        ["key_id", "key_hash", "role", "title", "expire_time", "workspace"],
        select(
            bindparam("key_id", type_=api_keys.c.key_id.type),
            bindparam("key_hash", type_=api_keys.c.key_hash.type),
            bindparam("role", type_=Text),
            bindparam("title", type_=Text),
            bindparam("expire_time", type_=api_keys.c.expire_time.type),
            workspaces.c.workspace,
        ).where(workspaces.c.workspace == bindparam("workspace"), workspaces.c.close_time.is_(None)),
    )
    .on_conflict_do_nothing(index_elements=[api_keys.c.key_id])
    .returning(*_COLUMNS, false())
)
_SAME = Composed(
    select(*_COLUMNS, false(), api_keys.c.key_hash == bindparam("key_hash")).where(
        api_keys.c.key_id == bindparam("key_id")
    )
)
_PAGE = Composed(
    select(*_COLUMNS, false())
    .where(api_keys.c.workspace == bindparam("workspace"), api_keys.c.key_id > bindparam("after"))
    .order_by(api_keys.c.key_id)
    .limit(bindparam("limit"))
)
# The system key may revoke any key.
_IS_MEANT = (
    api_keys.c.key_id == bindparam("key_id"),
    or_(bindparam("is_system", type_=Boolean), api_keys.c.workspace == bindparam("workspace")),
)
_REVOKE = Composed(
    update(api_keys)
    .where(*_IS_MEANT, api_keys.c.revoke_time.is_(None))
    .values(revoke_time=func.now())
    .returning(func.encode(api_keys.c.key_hash, literal("hex")))
)
_GET = Composed(select(*_COLUMNS, false()).where(*_IS_MEANT))


class PostgresKeys:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, key_hash: bytes) -> KeyRecord | None:
        row = await self._database.fetch_one(*_FIND(key_hash=key_hash))
        return None if row is None else _record(row)

    async def add(self, actor: Identity, key: NewKey) -> KeyRecord | None:
        async def work(connection: Connection) -> KeyRecord | None:
            row = await (await connection.execute(*_INSERT(**key._asdict()))).fetchone()
            if row is None:
                return await _added_before(connection, key)
            details = {"workspace": key.workspace, "role": key.role}
            await record(connection, actor, "CreateApiKey", str(key.key_id), details)
            crash_point("api.key.before_commit")
            return _record(row)

        return await self._database.transaction(work)

    async def page(self, workspace: str, after: str, limit: int) -> Sequence[KeyRecord]:
        start = uuid_of(after) or uuid.UUID(int=0)
        rows = await self._database.fetch(*_PAGE(workspace=workspace, after=start, limit=limit))
        return [_record(row) for row in rows]

    async def revoke(self, actor: Identity, key_id: str) -> KeyRecord | None:
        identity = uuid_of(key_id)
        if identity is None:
            return None

        async def work(connection: Connection) -> KeyRecord | None:
            is_system = actor.kind is CallerKind.SYSTEM
            meant = {"key_id": identity, "is_system": is_system, "workspace": actor.workspace}
            revoked = await (await connection.execute(*_REVOKE(**meant))).fetchone()
            if revoked is not None:
                await record(connection, actor, "RevokeApiKey", str(identity), {}, f"key:{revoked[0]}")
                crash_point("api.key.before_commit")
            row = await (await connection.execute(*_GET(**meant))).fetchone()
            return None if row is None else _record(row)

        return await self._database.transaction(work)


async def _added_before(connection: Connection, key: NewKey) -> KeyRecord | None:
    row = await (await connection.execute(*_SAME(key_hash=key.key_hash, key_id=key.key_id))).fetchone()
    if row is None:
        return None
    if not row[8]:
        raise KeyIdTaken
    return _record(row)


def _record(row: tuple[Any, ...]) -> KeyRecord:
    record = KeyRecord(*row[:8])
    return record._replace(key_id=str(record.key_id), workspace=record.workspace or "")
