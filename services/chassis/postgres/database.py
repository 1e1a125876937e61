"""A pool with a small, fixed number of connections, for everything that is not a writer loop.

Each call has the guarantees of a PgConnection: a deadline, a shield from cancellation, and a clean connection. When
all connections are busy, calls wait in order. The number of waiting calls is limited. Statements that are composed
with SQLAlchemy Core are compiled here and run on the same connections.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from services.chassis.postgres.connection import (
    CommitUnknown,
    Connection,
    DatabaseAway,
    Params,
    PgConnection,
    Statement,
)

if TYPE_CHECKING:
    from sqlalchemy import Executable

__all__ = ["CommitUnknown", "Database", "DatabaseAway", "PgConnection", "Statement"]

Result = TypeVar("Result")
_WAITING_MAX: Final = 10_000
_PROBE_SECONDS: Final = 2.0


class Database:
    def __init__(self, url: str, *, name: str, connections: int = 4, statement_seconds: float = 5.0) -> None:
        # A stack, so that the same few connections stay warm and the others idle.
        self._free = [PgConnection(url, name=name, statement_seconds=statement_seconds) for _ in range(connections)]
        self._connections = tuple(self._free)
        self._probe_connection = PgConnection(url, name=f"{name}-probe", statement_seconds=_PROBE_SECONDS)
        self._waiting: deque[asyncio.Future[PgConnection]] = deque()

    async def open(self) -> None:
        """Raise when the database cannot be reached. Connections are otherwise opened at their first use."""
        await self._connections[0].fetch("SELECT 1")

    async def close(self) -> None:
        for connection in (*self._connections, self._probe_connection):
            await connection.close()

    async def fetch(self, sql: str, params: Params = (), *, seconds: float | None = None) -> list[tuple[Any, ...]]:
        """Run one statement in autocommit mode, and return its rows."""
        return await self._with_connection(lambda connection: connection.fetch(sql, params, seconds=seconds))

    async def fetch_one(self, sql: str, params: Params = (), *, seconds: float | None = None) -> tuple[Any, ...] | None:
        """The first row, or None."""
        rows = await self.fetch(sql, params, seconds=seconds)
        return rows[0] if rows else None

    async def execute(self, sql: str, params: Params = (), *, seconds: float | None = None) -> int:
        """Run one statement in autocommit mode, and return the number of rows that it touched."""
        return await self._with_connection(lambda connection: connection.execute(sql, params, seconds=seconds))

    async def pipeline(
        self, statements: Sequence[Statement], *, seconds: float | None = None
    ) -> list[list[tuple[Any, ...]]]:
        """Run the statements in one transaction and one round trip, and return the rows of each."""
        return await self._with_connection(lambda connection: connection.pipeline(statements, seconds=seconds))

    async def transaction(
        self, work: Callable[[Connection], Awaitable[Result]], *, seconds: float | None = None
    ) -> Result:
        """Run `work` in a transaction, which is rolled back when `work` raises."""
        return await self._with_connection(lambda connection: connection.transaction(work, seconds=seconds))

    async def select(self, statement: Executable, *, seconds: float | None = None) -> list[tuple[Any, ...]]:
        """Run a statement composed with SQLAlchemy Core, and return its rows as plain tuples."""
        from services.chassis.postgres.compiled import compiled

        sql, params = compiled(statement)
        return await self.fetch(sql, params, seconds=seconds)

    async def probe(self) -> bool:
        """True when the database answers now. It has its own connection, so that a busy pool is no outage."""
        try:
            await self._probe_connection.fetch("SELECT 1", seconds=_PROBE_SECONDS)
        except DatabaseAway:
            return False
        return True

    async def _with_connection(self, work: Callable[[PgConnection], Awaitable[Result]]) -> Result:
        connection = await self._take()
        try:
            # The work goes on when this call is cancelled, so the connection comes back only when it has ended.
            return await work(connection)
        finally:
            connection.when_idle(self._give_back)

    async def _take(self) -> PgConnection:
        if self._free:
            return self._free.pop()
        if len(self._waiting) >= _WAITING_MAX:
            raise DatabaseAway("too many calls wait for a connection")
        waiter: asyncio.Future[PgConnection] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._give_back(waiter.result())
            raise

    def _give_back(self, connection: PgConnection) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        self._free.append(connection)
