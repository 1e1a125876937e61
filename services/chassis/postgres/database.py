"""A pool with a small, fixed number of connections, for everything that is not a writer loop.

Each call has the guarantees of a PgConnection: a deadline, a shield from cancellation, and a clean connection. When
all connections are busy, calls wait in order. The number of waiting calls is limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from services.chassis.postgres.connection import (
    CommitUnknown,
    Connection,
    DatabaseAway,
    PgConnection,
    Statement,
    Statements,
)

__all__ = ["CommitUnknown", "Database", "DatabaseAway", "PgConnection", "Statement"]

Result = TypeVar("Result")
WAITING_MAX: Final = 10_000
_PROBE_SECONDS: Final = 2.0


class Database(Statements):
    """Its connections are opened at their first use."""

    def __init__(self, url: str, *, name: str, connections: int = 4, statement_seconds: float = 5.0) -> None:
        # A stack, so that the same few connections stay warm and the others idle.
        self._free = [PgConnection(url, name=name, statement_seconds=statement_seconds) for _ in range(connections)]
        self._connections = tuple(self._free)
        self._turns = asyncio.Semaphore(connections)
        self._waiting = 0
        self._probe_connection = PgConnection(url, name=f"{name}-probe", statement_seconds=_PROBE_SECONDS)

    async def close(self) -> None:
        for connection in (*self._connections, self._probe_connection):
            await connection.close()

    async def probe(self) -> bool:
        """True when the database answers now. It has its own connection, so that a busy pool is no outage."""
        try:
            await self._probe_connection.fetch("SELECT 1")
        except DatabaseAway:
            return False
        return True

    async def run(self, work: Callable[[Connection], Awaitable[Result]], *, seconds: float | None = None) -> Result:
        await self._take_turn()
        connection = self._free.pop()

        def give_back(_: asyncio.Task[Result]) -> None:
            self._free.append(connection)
            self._turns.release()

        task = connection.begin(work, seconds)
        # The work goes on when this call is cancelled, so the connection comes back only when it has ended.
        task.add_done_callback(give_back)
        return await asyncio.shield(task)

    async def _take_turn(self) -> None:
        if self._waiting == WAITING_MAX:
            raise DatabaseAway("too many calls wait for a connection")
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
