"""Deletes request ids whose time is over, and messages to executions that are gone."""

from __future__ import annotations

from typing import Final

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.clock import Clock
from services.chassis.telemetry.logs import logger
from services.dispatcher.app.ports import Housekeeping, MailboxUpkeep

log = logger(__name__)
_EVERY_SECONDS: Final = 60.0
# Deletions per round, so that they leave the database to the batches.
_PIECES_MAX: Final = 20


class Retention:
    def __init__(self, *, housekeeping: Housekeeping, mailbox: MailboxUpkeep, clock: Clock) -> None:
        self._housekeeping = housekeeping
        self._mailbox = mailbox
        self._clock = clock

    async def run(self) -> None:
        while True:
            await self._clock.sleep(_EVERY_SECONDS)
            try:
                await self.run_once()
            except DependencyUnavailable as failure:
                log.info("retention waits for the database", error=str(failure))

    async def run_once(self) -> None:
        await self._mailbox.sweep()
        for _ in range(_PIECES_MAX):
            if not await self._housekeeping.forget_requests():
                return
