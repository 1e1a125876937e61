"""Finds out, for those who wait for an execution here, that it was given up.

No coordinator ever tells of such an end: it is a row in the dispatchers' queue.
"""

from __future__ import annotations

import asyncio
from typing import Final

from services.api.app.executions import Executions
from services.api.app.ports import WaitingCallers
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.telemetry.logs import logger

log = logger(__name__)

# An admission fails after seconds of trying: there is no hurry to find out.
ADMISSIONS_SECONDS: Final = 2.0


class AdmissionReader:
    """Finds out for those who wait that an execution was given up: no coordinator will ever tell of it."""

    def __init__(self, waiting: WaitingCallers, executions: Executions) -> None:
        self._waiting = waiting
        self._executions = executions

    async def run(self) -> None:
        while True:
            await asyncio.sleep(ADMISSIONS_SECONDS)
            try:
                await self.run_once()
            except (DependencyUnavailable, Refusal) as failure:
                log.info("admissions are read later", error=str(failure))

    async def run_once(self) -> None:
        waiting = self._waiting.waiting_since(asyncio.get_running_loop().time() - ADMISSIONS_SECONDS)
        if not waiting:
            return
        for record in await self._executions.given_up(waiting):
            self._waiting.final(record)
