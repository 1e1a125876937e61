"""API keys in PostgreSQL: hashes only."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from services.api.app.ports import Actor, KeyIdTaken, KeyRecord, NewKey
from services.api.store.audit import record, tell
from services.chassis.postgres.connection import Connection
from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point

_COLUMNS = "k.key_id, k.role, k.workspace, k.title, k.create_time, k.expire_time, k.revoke_time"
_FIND = f"""
SELECT {_COLUMNS}, w.close_time IS NOT NULL
FROM api_keys k LEFT JOIN workspaces w ON w.workspace = k.workspace WHERE k.key_hash = %s"""
_INSERT = f"""
INSERT INTO api_keys AS k (key_id, key_hash, role, workspace, title, expire_time)
SELECT %s, %s, %s, w.workspace, %s, %s FROM workspaces w WHERE w.workspace = %s AND w.close_time IS NULL
ON CONFLICT (key_id) DO NOTHING RETURNING {_COLUMNS}, false"""
_SAME = f"SELECT {_COLUMNS}, false, k.key_hash = %s FROM api_keys k WHERE k.key_id = %s"
_PAGE = f"""
SELECT {_COLUMNS}, false FROM api_keys k
WHERE k.workspace = %s AND k.key_id > %s ORDER BY k.key_id LIMIT %s"""
_REVOKE = """
UPDATE api_keys SET revoke_time = now()
WHERE key_id = %s AND (%s OR workspace = %s) AND revoke_time IS NULL RETURNING encode(key_hash, 'hex')"""
_GET = f"SELECT {_COLUMNS}, false FROM api_keys k WHERE k.key_id = %s AND (%s OR k.workspace = %s)"


class PostgresKeys:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, key_hash: bytes) -> KeyRecord | None:
        row = await self._database.fetch_one(_FIND, (key_hash,))
        return None if row is None else _record(row)

    async def add(self, actor: Actor, key: NewKey) -> KeyRecord | None:
        async def work(connection: Connection) -> KeyRecord | None:
            values = (key.key_id, key.key_hash, key.role, key.title, key.expire_time, key.workspace)
            row = await (await connection.execute(_INSERT, values)).fetchone()
            if row is None:
                return await _added_before(connection, key)
            details = {"workspace": key.workspace, "role": key.role}
            await record(connection, actor, "CreateApiKey", str(key.key_id), details)
            crash_point("api.key.before_commit")
            return _record(row)

        return await self._database.transaction(work)

    async def page(self, workspace: str, after: str, limit: int) -> Sequence[KeyRecord]:
        start = uuid.UUID(after) if after else uuid.UUID(int=0)
        return [_record(row) for row in await self._database.fetch(_PAGE, (workspace, start, limit))]

    async def revoke(self, actor: Actor, key_id: str) -> KeyRecord | None:
        try:
            identity = uuid.UUID(key_id)
        except ValueError:
            return None

        async def work(connection: Connection) -> KeyRecord | None:
            values = (identity, actor.workspace == "", actor.workspace)
            revoked = await (await connection.execute(_REVOKE, values)).fetchone()
            if revoked is not None:
                await record(connection, actor, "RevokeApiKey", str(identity))
                await tell(connection, f"key:{revoked[0]}")
                crash_point("api.key.before_commit")
            row = await (await connection.execute(_GET, values)).fetchone()
            return None if row is None else _record(row)

        return await self._database.transaction(work)


async def _added_before(connection: Connection, key: NewKey) -> KeyRecord | None:
    row = await (await connection.execute(_SAME, (key.key_hash, key.key_id))).fetchone()
    if row is None:
        return None
    if not row[8]:
        raise KeyIdTaken
    return _record(row)


def _record(row: tuple[Any, ...]) -> KeyRecord:
    key_id, role, workspace, title, create_time, expire_time, revoke_time, is_closed = row[:8]
    return KeyRecord(
        str(key_id), role, workspace or "", title, create_time, expire_time, revoke_time, is_closed
    )
