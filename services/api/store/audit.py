"""Who changed what, written in the transaction of the change itself, so that neither exists without the other."""

from collections.abc import Mapping
from typing import Any

import orjson

from services.api.app.ports import Actor
from services.chassis.postgres.connection import Connection

CHANNEL = "api_changes"

_INSERT = "INSERT INTO audit (workspace, actor, action, subject, details) VALUES (%s, %s, %s, %s, %s::jsonb)"


async def record(
    connection: Connection, actor: Actor, action: str, subject: str, details: Mapping[str, Any] | None = None
) -> None:
    text = orjson.dumps(dict(details or {})).decode()
    await connection.execute(_INSERT, (actor.workspace or None, actor.key_id, action, subject, text))


async def tell(connection: Connection, changed: str) -> None:
    """Every replica drops what it has cached of this, at the commit. Changes are rare: NOTIFY may ride along here."""
    await connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, changed))
