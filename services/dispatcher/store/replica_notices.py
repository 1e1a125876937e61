"""Sends the notices between replicas by NOTIFY."""

from collections.abc import Sequence
from typing import Final

from services.chassis.postgres.arrays import Texts
from services.chassis.postgres.database import Database

_SEND: Final = "SELECT count(pg_notify(%s, payload)) FROM unnest(%s) AS p (payload)"


class PostgresNoticeSender:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def send(self, channel: str, payloads: Sequence[str]) -> None:
        await self._database.fetch(_SEND, (channel, Texts(payloads)))
