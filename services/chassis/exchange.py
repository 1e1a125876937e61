"""Statements of a hot path on one connection, by libpq itself: one transaction and one round trip for all of them.

What the driver does around a statement (a cursor, the type of each value found out, generators that are driven through
the event loop) costs more than the statement. Here each is prepared at its first use, the parameters name their own
types, and what is left is to send, to wait and to read.

Hazard: the connection must not be in use otherwise. A Lane sees to that, and discards it when something breaks here.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format

from services.chassis.arrays import Array

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

Rows = list[tuple[Any, ...]]
# With $1, $2, …; what is no Array goes as text, and the server finds its type.
HotStatement = tuple[bytes, Sequence[Array | int]]

_UNTYPED: Final = 0


class Exchanges:
    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._pgconn = connection.pgconn
        self._reader = Transformer(connection)
        self._numbers = itertools.count()
        # Prepared on the server, by their text.
        self._names: dict[bytes, bytes] = {}

    async def run(self, statements: Sequence[HotStatement]) -> list[Rows]:
        """The rows of each. The server takes all that comes before one Sync as one transaction."""
        pgconn = self._pgconn
        pgconn.enter_pipeline_mode()
        # Per command, what it prepares; None: it runs a statement.
        commands: list[tuple[bytes, bytes] | None] = []
        for sql, parameters in statements:
            self._send(sql, parameters, commands)
        pgconn.pipeline_sync()
        while pgconn.flush():
            # Read too: the server may wait for that before it takes more.
            await self._until_ready(is_writing=True)
            pgconn.consume_input()
        results = [await self._result() for _ in commands]
        await self._result()
        pgconn.exit_pipeline_mode()
        return self._answers(commands, results)

    def _send(
        self,
        sql: bytes,
        parameters: Sequence[Array | int],
        commands: list[tuple[bytes, bytes] | None],
    ) -> None:
        values: list[bytes | None] = []
        formats: list[int] = []
        oids: list[int] = []
        for each in parameters:
            if isinstance(each, Array):
                values.append(each.wire())
                formats.append(Format.BINARY)
                oids.append(each.array_oid)
            else:
                values.append(b"%d" % each)
                formats.append(Format.TEXT)
                oids.append(_UNTYPED)
        name = self._names.get(sql)
        if name is None:
            name = b"hot_%d" % next(self._numbers)
            self._pgconn.send_prepare(name, sql, oids)
            commands.append((sql, name))
        self._pgconn.send_query_prepared(name, values, formats, result_format=Format.BINARY)
        commands.append(None)

    async def _result(self) -> PGresult:
        """Of the next command, or of the Sync behind the last."""
        pgconn = self._pgconn
        while True:
            while pgconn.is_busy():
                await self._until_ready()
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is not None:
                return result
            # What stands between the results of two commands; after a broken connection there is nothing else.
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

    def _answers(
        self, commands: Sequence[tuple[bytes, bytes] | None], results: Sequence[PGresult]
    ) -> list[Rows]:
        for prepared, result in zip(commands, results, strict=True):
            if prepared is not None and result.status == ExecStatus.COMMAND_OK:
                self._names[prepared[0]] = prepared[1]
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                raise error_from_result(result)
        return [
            self._rows(result) for prepared, result in zip(commands, results, strict=True) if prepared is None
        ]

    def _rows(self, result: PGresult) -> Rows:
        count = result.ntuples
        if not count:
            return []
        self._reader.set_pgresult(result)
        return self._reader.load_rows(0, count, tuple)


def _complete(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
