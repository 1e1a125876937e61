"""The audit of changes, written in the transaction of the change itself, so that neither exists without the other."""

from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy import Text, bindparam, cast, delete, func, insert, select
from sqlalchemy.dialects.postgresql import JSONB

from services.api.store.tables import audit
from services.chassis.identity.callers import Identity
from services.chassis.postgres.compiled import Composed, seconds
from services.chassis.postgres.connection import Connection
from services.chassis.postgres.database import Database

CHANNEL = "api_changes"

_INSERT = Composed(
    insert(audit).values(
        {name: bindparam(name) for name in ("workspace", "actor", "action", "subject")}
        | {"details": cast(bindparam("details", type_=Text), JSONB)}
    )
)
# The ids rise with the time, so the oldest rows have the lowest ids. Only these are looked at.
_OLDEST = select(audit.c.audit_id, audit.c.audit_time).order_by(audit.c.audit_id).limit(5_000).cte("oldest")
_FORGET = Composed(
    delete(audit).where(
        audit.c.audit_id == _OLDEST.c.audit_id, _OLDEST.c.audit_time < func.now() - seconds(bindparam("older_than"))
    )
)
_NOTIFY = Composed(select(func.pg_notify(CHANNEL, bindparam("changed", type_=Text))))


class PostgresAudit:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, actor: Identity, action: str, subject: str, details: Mapping[str, Any]) -> None:
        async def work(connection: Connection) -> None:
            await record(connection, actor, action, subject, details)

        await self._database.transaction(work)


async def record(
    connection: Connection, actor: Identity, action: str, subject: str, details: Mapping[str, Any], tells: str = ""
) -> None:
    """At the commit every replica drops what it has cached of `tells`. NOTIFY locks at commit, but changes are rare."""
    statement = _INSERT(
        workspace=actor.workspace or None,
        actor=actor.name,
        action=action,
        subject=subject,
        details=orjson.dumps(dict(details)).decode(),
    )
    await connection.execute(*statement)
    if tells:
        await connection.execute(*_NOTIFY(changed=tells))


async def forget(database: Database, older_than_seconds: float) -> int:
    """Delete some rows that are older; returns how many."""
    return await database.execute(*_FORGET(older_than=older_than_seconds))
