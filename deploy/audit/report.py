"""Audits an installation and prints the verdict as JSON lines, one per promise."""

from __future__ import annotations

from collections.abc import Callable

import orjson
import psycopg
from psycopg import IsolationLevel

from deploy.audit.auditor import Auditor

CONNECT_SECONDS = 10


async def report(operator_url: str, say: Callable[[str], None]) -> int:
    """Returns 0 if every promise that rows can show is kept, 1 if one is broken."""
    async with await psycopg.AsyncConnection.connect(
        operator_url, connect_timeout=CONNECT_SECONDS
    ) as connection:
        await connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        async with connection.transaction():
            findings = await Auditor(connection).audit()
    for line in findings.lines():
        say(orjson.dumps(line).decode())
    return 1 if findings.broken_count else 0
