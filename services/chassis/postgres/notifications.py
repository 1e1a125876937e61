"""LISTEN on a connection of its own, for ever.

A notification is only a hint that something has changed, because it can be lost with the connection. So after every
(re)connect the callback gets an empty payload for each channel, and must read everything again.

Hazard: the callback runs on the event loop between two notifications. It must only set a flag and return.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import psycopg
from psycopg import sql

from services.chassis.postgres.connection import Connection, DatabaseAway, connect
from services.chassis.process.backoff import Backoff
from services.chassis.telemetry.logs import logger

log = logger(__name__)

# A quiet connection is tested this often. Otherwise a stopped server would never be noticed.
PROVE_SECONDS: Final = 15.0
STATEMENT_SECONDS: Final = 5.0


class Notifications:
    def __init__(
        self, url: str, channels: Sequence[str], heard: Callable[[str, str], None], *, name: str = "listen"
    ) -> None:
        self._url = url
        self._channels = tuple(channels)
        self._heard = heard
        self._name = name

    async def run(self) -> None:
        backoff = Backoff()
        while True:
            try:
                connection = await connect(self._url, name=self._name, statement_seconds=STATEMENT_SECONDS)
                try:
                    await self._listen(connection)
                    backoff.reset()
                    await self._hear(connection)
                finally:
                    with contextlib.suppress(psycopg.Error, OSError):
                        await connection.close()
            except (DatabaseAway, psycopg.OperationalError, TimeoutError) as failure:
                # A TimeoutError has no text.
                log.info("listening again soon", error=next(iter(str(failure).splitlines()), "no answer"))
            await asyncio.sleep(backoff.next())

    async def _listen(self, connection: Connection) -> None:
        async with asyncio.timeout(STATEMENT_SECONDS):
            for channel in self._channels:
                await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        for channel in self._channels:
            self._heard(channel, "")

    async def _hear(self, connection: Connection) -> None:
        while True:
            async for notice in connection.notifies(timeout=PROVE_SECONDS):
                self._heard(notice.channel, notice.payload)
            async with asyncio.timeout(STATEMENT_SECONDS):
                await connection.execute("SELECT 1")
