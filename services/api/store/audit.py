"""The audit of changes, written in the transaction of the change itself, so that neither exists without the other."""

from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy import Text, bindparam, cast, func, insert, select
from sqlalchemy.dialects.postgresql import JSONB

from services.api.store.tables import audit
from services.chassis.identity.callers import Identity
from services.chassis.postgres.compiled import Composed
from services.chassis.postgres.connection import Connection

CHANNEL = "api_changes"

_INSERT = Composed(
    insert(audit).values(
        {name: bindparam(name) for name in ("workspace", "actor", "action", "subject")}
        | {"details": cast(bindparam("details", type_=Text), JSONB)}
    )
)
_NOTIFY = Composed(select(func.pg_notify(CHANNEL, bindparam("changed", type_=Text))))


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
