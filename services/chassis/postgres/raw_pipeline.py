"""Statements of a hot path on one connection, through libpq: one transaction and one round trip for all of them.

The work of the driver around a statement (a cursor, finding the type of each value, generators that are driven through
the event loop) costs more than the statement. Here each statement is prepared at its first use, and the parameters name
their own types.

Hazard: nothing else may use the connection meanwhile. A PgConnection ensures that, and discards the connection when
something fails here.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format

from services.chassis.postgres.arrays import Array

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

Rows = list[tuple[Any, ...]]
# SQL with $1, $2, …, and its parameters. An int is sent as text, and the server finds its type.
HotStatement = tuple[bytes, Sequence[Array | int]]

_UNTYPED: Final = 0


class _Written(NamedTuple):
    """A statement as it goes to the server."""

    sql: bytes
    values: list[bytes | None]
    formats: list[int]
    oids: list[int]


class RawPipeline:
    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._pgconn = connection.pgconn
        self._reader = Transformer(connection)
        self._numbers = itertools.count()
        # The names of the prepared statements, by their SQL.
        self._names: dict[bytes, bytes] = {}

    async def run(self, statements: Sequence[HotStatement]) -> list[Rows]:
        """Run the statements and return the rows of each. All before one Sync is one transaction.

        Raises DataError for a value that cannot be written, as for one that the server refuses.
        """
        pgconn = self._pgconn
        # This comes before anything is sent, so that a value that cannot be written leaves the connection clean.
        written = [_written(sql, parameters) for sql, parameters in statements]
        pgconn.enter_pipeline_mode()
        # For each command, the SQL and the name that it prepares. None: it runs a statement.
        commands: list[tuple[bytes, bytes] | None] = []
        for each in written:
            self._send(each, commands)
        pgconn.pipeline_sync()
        while pgconn.flush():
            # It reads as well, because the server may send before it accepts more.
            await self._until_ready(is_writing=True)
            pgconn.consume_input()
        results = [await self._result() for _ in commands]
        # A commit that fails is an extra result before that of the Sync.
        while (ended := await self._result()).status != ExecStatus.PIPELINE_SYNC:
            results.append(ended)
        pgconn.exit_pipeline_mode()
        return self._answers(commands, results)

    def _send(self, written: _Written, commands: list[tuple[bytes, bytes] | None]) -> None:
        name = self._names.get(written.sql)
        if name is None:
            name = b"hot_%d" % next(self._numbers)
            self._pgconn.send_prepare(name, written.sql, written.oids)
            commands.append((written.sql, name))
        self._pgconn.send_query_prepared(name, written.values, written.formats, result_format=Format.BINARY)
        commands.append(None)

    async def _result(self) -> PGresult:
        """The result of the next command, or of the Sync behind the last one."""
        pgconn = self._pgconn
        while True:
            while pgconn.is_busy():
                await self._until_ready()
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is not None:
                return result
            # None separates the results of two commands. On a broken connection only None comes.
            if pgconn.status != ConnStatus.OK:
                raise psycopg.OperationalError("the connection is lost")

    async def _until_ready(self, *, is_writing: bool = False) -> None:
        loop = asyncio.get_running_loop()
        descriptor = self._pgconn.socket
        ready = loop.create_future()
        loop.add_reader(descriptor, _complete, ready)
        if is_writing:
            loop.add_writer(descriptor, _complete, ready)
        try:
            await ready
        finally:
            loop.remove_reader(descriptor)
            if is_writing:
                loop.remove_writer(descriptor)

    def _answers(self, commands: Sequence[tuple[bytes, bytes] | None], results: Sequence[PGresult]) -> list[Rows]:
        for prepared, result in zip(commands, results, strict=False):
            if prepared is not None and result.status == ExecStatus.COMMAND_OK:
                self._names[prepared[0]] = prepared[1]
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                raise error_from_result(result)
        return [self._rows(result) for prepared, result in zip(commands, results, strict=True) if prepared is None]

    def _rows(self, result: PGresult) -> Rows:
        count = result.ntuples
        if not count:
            return []
        self._reader.set_pgresult(result)
        return self._reader.load_rows(0, count, tuple)


def _written(sql: bytes, parameters: Sequence[Array | int]) -> _Written:
    written = _Written(sql, [], [], [])
    for each in parameters:
        if isinstance(each, Array):
            try:
                written.values.append(each.wire())
            except Exception as failure:
                # The text of the failure is left out, because it may quote the value.
                raise psycopg.DataError(f"no {each.element}: {type(failure).__name__}") from failure
            written.formats.append(Format.BINARY)
            written.oids.append(each.array_oid)
        else:
            written.values.append(b"%d" % each)
            written.formats.append(Format.TEXT)
            written.oids.append(_UNTYPED)
    return written


def _complete(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
