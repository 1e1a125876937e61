"""Deletes what is too old, for ever, in small pieces that leave the database to everything else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.clock import Clock
from services.chassis.telemetry.logs import logger

log = logger(__name__)
EVERY_SECONDS: Final = 60.0
# Pieces of one kind in one round.
_PIECES_MAX: Final = 20

# Deletes one piece, and returns how many items it had.
DeletePiece = Callable[[], Awaitable[int]]


class Retention:
    def __init__(self, *kinds: DeletePiece, clock: Clock) -> None:
        self._kinds = kinds
        self._clock = clock

    async def run(self) -> None:
        while True:
            await self._clock.sleep(EVERY_SECONDS)
            try:
                await self.run_once()
            except DependencyUnavailable as failure:
                log.info("retention waits for the database", error=str(failure))

    async def run_once(self) -> None:
        for delete_piece in self._kinds:
            for _ in range(_PIECES_MAX):
                if not await delete_piece():
                    break
