"""Who changed what, written in the transaction of the change itself, so that neither exists without the other."""

from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy import Text, bindparam, cast, func, insert, select
from sqlalchemy.dialects.postgresql import JSONB

from services.api.app.ports import Actor
from services.api.store.tables import audit
from services.chassis.postgres.compiled import Composed
from services.chassis.postgres.connection import Connection

CHANNEL = "api_changes"

_INSERT = Composed(
    insert(audit).values(
        workspace=bindparam("workspace"),
        actor=bindparam("actor"),
        action=bindparam("action"),
        subject=bindparam("subject"),
        details=cast(bindparam("details", type_=Text), JSONB),
    )
)
_NOTIFY = Composed(select(func.pg_notify(CHANNEL, bindparam("changed", type_=Text))))


async def record(
    connection: Connection, actor: Actor, action: str, subject: str, details: Mapping[str, Any] | None = None
) -> None:
    statement = _INSERT(
        workspace=actor.workspace or None,
        actor=actor.key_id,
        action=action,
        subject=subject,
        details=orjson.dumps(dict(details or {})).decode(),
    )
    await connection.execute(*statement)


async def tell(connection: Connection, changed: str) -> None:
    """Every replica drops what it has cached of this, at the commit. Changes are rare: NOTIFY may ride along here."""
    await connection.execute(*_NOTIFY(changed=changed))
