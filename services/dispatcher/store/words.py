"""NOTIFY, off the hot path."""

from collections.abc import Sequence
from typing import Final

from services.chassis.arrays import Texts
from services.chassis.database import Database

_SAY: Final = "SELECT count(pg_notify(%s, payload)) FROM unnest(%s) AS p (payload)"


class PostgresWords:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def say(self, channel: str, payloads: Sequence[str]) -> None:
        await self._database.fetch(_SAY, (channel, Texts(payloads)))
