"""A small, fixed number of connections that many calls share, for everything that is not a writer loop.

Made of connections, so each call has their guarantees: a deadline, a shield from cancellation, no connection
returned dirty. A call that finds all connections busy waits its turn, first come first served; how many may wait
is bounded, because work that waits longer than its deadline is better refused at once. Composed statements
(SQLAlchemy Core) are compiled here and run on the same connections: one pool, one set of rules.
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
        # Last in, first out: the busiest connections stay warm, the others idle.
        self._free = [
            PgConnection(url, name=name, statement_seconds=statement_seconds) for _ in range(connections)
        ]
        self._connections = tuple(self._free)
        self._probe_connection = PgConnection(url, name=f"{name}-probe", statement_seconds=_PROBE_SECONDS)
        self._waiting: deque[asyncio.Future[PgConnection]] = deque()

    async def open(self) -> None:
        """Nothing is opened before its first use; this only finds out whether it could be."""
        await self._connections[0].fetch("SELECT 1")

    async def close(self) -> None:
        for connection in (*self._connections, self._probe_connection):
            await connection.close()

    async def fetch(
        self, sql: str, params: Params = (), *, seconds: float | None = None
    ) -> list[tuple[Any, ...]]:
        """One autocommitted statement; its rows."""
        return await self._with_connection(lambda connection: connection.fetch(sql, params, seconds=seconds))

    async def fetch_one(
        self, sql: str, params: Params = (), *, seconds: float | None = None
    ) -> tuple[Any, ...] | None:
        """The first row, or None."""
        rows = await self.fetch(sql, params, seconds=seconds)
        return rows[0] if rows else None

    async def execute(self, sql: str, params: Params = (), *, seconds: float | None = None) -> int:
        """One autocommitted statement; the number of rows it touched."""
        return await self._with_connection(
            lambda connection: connection.execute(sql, params, seconds=seconds)
        )

    async def pipeline(
        self, statements: Sequence[Statement], *, seconds: float | None = None
    ) -> list[list[tuple[Any, ...]]]:
        """All of them in one transaction and one round trip; the rows of each."""
        return await self._with_connection(
            lambda connection: connection.pipeline(statements, seconds=seconds)
        )

    async def transaction(
        self, work: Callable[[Connection], Awaitable[Result]], *, seconds: float | None = None
    ) -> Result:
        """BEGIN, `work`, COMMIT; rolled back when `work` raises."""
        return await self._with_connection(lambda connection: connection.transaction(work, seconds=seconds))

    async def select(self, statement: Executable, *, seconds: float | None = None) -> list[tuple[Any, ...]]:
        """A statement composed with SQLAlchemy Core; its rows as plain tuples."""
        from services.chassis.postgres.compiled import compiled

        sql, params = compiled(statement)
        return await self.fetch(sql, params, seconds=seconds)

    async def probe(self) -> bool:
        """Whether the database answers now; on a connection of its own, so that a busy pool is no outage."""
        try:
            await self._probe_connection.fetch("SELECT 1", seconds=_PROBE_SECONDS)
        except DatabaseAway:
            return False
        return True

    async def _with_connection(self, work: Callable[[PgConnection], Awaitable[Result]]) -> Result:
        connection = await self._take()
        try:
            # The connection shields its work; it is ours again only when that work has truly ended.
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
