"""Creates the first workspace and the first keys of an installation.

It is safe to repeat: the workspace is made once, and each call mints three new keys, because only hashes of keys are
stored. The statements are raw SQL, so that `windlass up` need not import SQLAlchemy.
"""

from __future__ import annotations

import secrets
import uuid
from typing import Final, NamedTuple

from services.api.app.key_material import key_hash, mint_key
from services.api.core.tiers import QUEUED_MAX, Tier
from services.chassis.postgres.connection import Connection, PgConnection
from services.chassis.process.crash import crash_point

DEFAULT_WORKSPACE: Final = "default"
DEFAULT_EXECUTIONS_MAX: Final = 1_000


class FirstKeys(NamedTuple):
    admin: str
    system: str
    runner: str


async def bootstrap(dsn: str) -> FirstKeys:
    """`dsn` connects as the role that owns the tables of api."""
    keys = FirstKeys(mint_key("admin"), mint_key("system"), mint_key("runner"))
    rows = (("ADMIN", DEFAULT_WORKSPACE, keys.admin), ("SYSTEM", None, keys.system), ("RUNNER", None, keys.runner))

    async def work(connection: Connection) -> None:
        await connection.execute(
            "INSERT INTO workspaces (workspace, tier, executions_max, queued_max, effect_secret)"
            " VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            (DEFAULT_WORKSPACE, int(Tier.ENTERPRISE), DEFAULT_EXECUTIONS_MAX, QUEUED_MAX, secrets.token_bytes(32)),
        )
        for role, workspace, key in rows:
            await connection.execute(
                "INSERT INTO api_keys (key_id, key_hash, role, workspace, title) VALUES (%s, %s, %s, %s, %s)",
                (uuid.uuid4(), key_hash(key), role, workspace, f"first {role.lower()} key"),
            )
        await connection.execute(
            "INSERT INTO audit (workspace, actor, action, subject) VALUES (%s, 'bootstrap', 'Bootstrap', %s)",
            (DEFAULT_WORKSPACE, DEFAULT_WORKSPACE),
        )
        crash_point("api.bootstrap.before_commit")

    database = PgConnection(dsn, name="bootstrap")
    try:
        await database.transaction(work)
    finally:
        await database.close()
    return keys
