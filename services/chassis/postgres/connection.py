"""A PostgreSQL connection that reconnects by itself, answers in time, and is never left inside a transaction.

It runs one call at a time. Each writer loop has one, and a `Database` has several.

Four things go wrong with connections:
- *The server is stopped and not dead.* The kernel still acknowledges, so TCP notices nothing. Every call has a
  deadline. When it passes, the socket is shut down, the driver sees an end of file, and the connection is discarded.
- *The caller is cancelled.* The driver would cancel the statement and might break the connection between statement
  and commit. So a call runs as a task behind a shield until its end or deadline. Only `run_pipeline` has no shield:
  when it is cancelled, the connection is discarded.
- *An answer is lost.* Then it is unknown whether the commit happened: `CommitUnknown`. A statement that surely did
  not commit raises `DatabaseAway`. A writer must treat the two differently, a reader need not.
  Hazard: a statement that was given up at its deadline may still commit later, even after its repetition, because a
  stopped backend goes on where it was. Only conditions inside the statement (epoch, sequence, id) protect then.
- *The client is stopped inside a transaction.* The server ends the session, and its locks, by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.postgres.arrays import Array, ArrayDumper
from services.chassis.postgres.raw_pipeline import HotStatement, RawPipeline, Rows

Result = TypeVar("Result")
Params = Sequence[Any] | Mapping[str, Any]
Statement = tuple[str, Params]
Connection = AsyncConnection[tuple[Any, ...]]

_CONNECT_SECONDS: Final = 3
_IDLE_IN_TRANSACTION_MS: Final = 10_000
NO_SETTINGS: Final[Mapping[str, str]] = {}
# Settings for statements that take whole batches as arrays. They are planned once, perhaps while the tables are small,
# for arrays of any length. The plan that is right at every size uses the indexes, so all others are switched off.
BY_INDEX: Final[Mapping[str, str]] = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
# These classes and codes of SQLSTATE mean that the statement had no effect, and may succeed when it is repeated.
_AWAY_CLASSES: Final = ("08", "53", "57P", "58")
_AWAY_CODES: Final = frozenset({"57014", "55P03", "40001", "40P01", "25006"})
# These mean that it may succeed with other values: data, integrity, a limit of the program.
_VALUE_CLASSES: Final = ("22", "23", "54")


class DatabaseAway(DependencyUnavailable):
    """The statement surely did not commit. Repeat it when the database is back."""

    def __init__(self, message: str) -> None:
        super().__init__("the database", message)


class CommitUnknown(DatabaseAway):
    """No answer came, so the statement may have committed. Look before repeating it, unless it is idempotent."""


def is_away(failure: psycopg.Error) -> bool:
    """True when the state of the database is the cause, and not the statement."""
    if failure.sqlstate is None:
        return isinstance(failure, psycopg.OperationalError)
    return failure.sqlstate in _AWAY_CODES or failure.sqlstate.startswith(_AWAY_CLASSES)


def is_of_values(failure: psycopg.Error) -> bool:
    """True when the parameters are the cause: without the bad one, the rest of a batch may succeed. A failure that is
    neither this nor `is_away` (a missing right, table or column, a bug) comes back with any parameters."""
    if failure.sqlstate is None:
        return isinstance(failure, psycopg.DataError)  # the driver's own
    return failure.sqlstate.startswith(_VALUE_CLASSES)


def is_damage(failure: psycopg.Error) -> bool:
    """True when a row or an index is damaged. Only statements that need it fail."""
    return (failure.sqlstate or "").startswith("XX")


async def connect(
    url: str, *, name: str, statement_seconds: float, settings: Mapping[str, str] = NO_SETTINGS
) -> Connection:
    """A new connection in autocommit mode, which prepares every statement at its first use."""
    # The server's limit is twice ours, and ends statements whose client has died.
    limits = {
        "statement_timeout": str(round(statement_seconds * 2_000)),
        "idle_in_transaction_session_timeout": str(_IDLE_IN_TRANSACTION_MS),
    }
    try:
        connection = await AsyncConnection.connect(
            url,
            autocommit=True,
            prepare_threshold=0,
            connect_timeout=_CONNECT_SECONDS,
            application_name=name,
            options=" ".join(f"-c {name}={value}" for name, value in {**limits, **settings}.items()),
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
        )
    except psycopg.Error as failure:
        if is_away(failure):
            raise DatabaseAway(f"cannot connect: {_first_line(failure)}") from failure
        raise
    connection.prepared_max = 500
    connection.adapters.register_dumper(Array, ArrayDumper)
    return connection


class Statements(ABC):
    """The calls of a PgConnection, and of a Database, which runs each of them on one of its connections."""

    @abstractmethod
    async def run(self, work: Callable[[Connection], Awaitable[Result]], *, seconds: float | None = None) -> Result:
        """Run `work` with the connection, shielded from a cancellation of the caller. `seconds` is its deadline."""

    async def fetch(self, sql: str, params: Params = (), *, seconds: float | None = None) -> list[tuple[Any, ...]]:
        """Run one statement in autocommit mode, and return its rows."""

        async def work(connection: Connection) -> list[tuple[Any, ...]]:
            cursor = await connection.execute(sql, params, binary=True)
            return await cursor.fetchall() if cursor.description is not None else []

        return await self.run(work, seconds=seconds)

    async def fetch_one(self, sql: str, params: Params = (), *, seconds: float | None = None) -> tuple[Any, ...] | None:
        """The first row, or None."""
        rows = await self.fetch(sql, params, seconds=seconds)
        return rows[0] if rows else None

    async def execute(self, sql: str, params: Params = ()) -> int:
        """Run one statement in autocommit mode, and return the number of rows that it touched."""

        async def work(connection: Connection) -> int:
            return (await connection.execute(sql, params)).rowcount

        return await self.run(work)

    async def pipeline(self, statements: Sequence[Statement]) -> list[list[tuple[Any, ...]]]:
        """Run the statements in one transaction and one round trip, and return the rows of each.

        Each statement has its own snapshot, so that one may count rows that an earlier one has locked.
        """

        async def work(connection: Connection) -> list[list[tuple[Any, ...]]]:
            async with connection.pipeline():
                cursors = [await connection.execute(sql, params, binary=True) for sql, params in statements]
            return [await cursor.fetchall() if cursor.description is not None else [] for cursor in cursors]

        return await self.run(work)

    async def transaction(self, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Run `work` in a transaction, which is rolled back when `work` raises. The deadline is for all of it."""

        async def whole(connection: Connection) -> Result:
            async with connection.transaction():
                return await work(connection)

        return await self.run(whole)


class PgConnection(Statements):
    def __init__(
        self, url: str, *, name: str, statement_seconds: float = 5.0, settings: Mapping[str, str] = NO_SETTINGS
    ) -> None:
        """`settings` are server settings for this connection."""
        self._url = url
        self._name = name
        self._statement_seconds = statement_seconds
        self._settings = settings
        self._connection: Connection | None = None
        self._raw_pipeline: RawPipeline | None = None
        self._turn = asyncio.Lock()
        self._at_work: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def run_pipeline(self, statements: Sequence[HotStatement]) -> list[Rows]:
        """`pipeline` without the cost of the driver, for the statements of a hot path.

        It has no shield: when it is cancelled, the connection is discarded, and it is unknown whether it committed.
        """

        async def work(_: Connection) -> list[Rows]:
            assert self._raw_pipeline is not None
            return await self._raw_pipeline.run(statements)

        return await self._take_turn(work, self._statement_seconds)

    async def run(self, work: Callable[[Connection], Awaitable[Result]], *, seconds: float | None = None) -> Result:
        return await asyncio.shield(self.begin(work, seconds))

    def begin(self, work: Callable[[Connection], Awaitable[Result]], seconds: float | None) -> asyncio.Task[Result]:
        """`run` as a task, which goes on when nobody waits for it."""
        limit = self._statement_seconds if seconds is None else seconds
        task = asyncio.ensure_future(self._take_turn(work, limit))
        self._at_work.add(task)
        task.add_done_callback(self._finished)
        return task

    async def close(self) -> None:
        """Close after the running calls, which have their deadlines. Calls that arrive later raise DatabaseAway."""
        self._is_closed = True
        if self._at_work:
            await asyncio.wait(self._at_work)
        async with self._turn:
            await self._discard()

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._at_work.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not complain when no caller waits any more

    async def _take_turn(self, work: Callable[[Connection], Awaitable[Result]], seconds: float) -> Result:
        async with self._turn:
            connection = await self._connected()
            try:
                return await self._in_time(connection, work, seconds)
            finally:
                if connection.closed or connection.pgconn.transaction_status != TransactionStatus.IDLE:
                    await self._discard()

    async def _connected(self) -> Connection:
        if self._is_closed:
            raise DatabaseAway("this process has closed its connections")
        if self._connection is None or self._connection.closed or _has_news(self._connection):
            await self._discard()
            self._connection = await connect(
                self._url, name=self._name, statement_seconds=self._statement_seconds, settings=self._settings
            )
            self._raw_pipeline = RawPipeline(self._connection)
        return self._connection

    async def _in_time(
        self, connection: Connection, work: Callable[[Connection], Awaitable[Result]], seconds: float
    ) -> Result:
        deadline = asyncio.get_running_loop().call_later(seconds, _shut, connection.pgconn.socket)
        try:
            return await work(connection)
        except psycopg.Error as failure:
            # The connection broke during the call, so no answer can come.
            if connection.closed or connection.broken:
                raise CommitUnknown(f"no answer: {_first_line(failure)}") from failure
            if is_away(failure):
                raise DatabaseAway(_first_line(failure)) from failure
            raise
        finally:
            deadline.cancel()

    async def _discard(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await connection.close()


def _has_news(connection: Connection) -> bool:
    """True when an idle connection has data to read: the server is closing it, so it takes no statement."""
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def _shut(descriptor: int) -> None:
    """Shut the socket down for both sides. This wakes the driver without cancelling it."""
    # This shuts down a duplicate, because another socket could reuse the driver's descriptor once that is closed.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


def _first_line(failure: psycopg.Error) -> str:
    text = str(failure).strip()
    return text.splitlines()[0] if text else type(failure).__name__
