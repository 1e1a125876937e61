"""Ends the watches of executions that were given up.

Coordinators do not push such an end, because it is a row in the dispatchers' queue.
"""

from __future__ import annotations

import asyncio
from typing import Final

from services.api.app.executions import Executions
from services.api.app.ports import WaitingCallers
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.telemetry.logs import logger

log = logger(__name__)

# An execution is given up after seconds of retries, so its watches may end a little later.
ADMISSIONS_SECONDS: Final = 2.0


class AdmissionReader:
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
        for execution in await self._executions.given_up(waiting):
            self._waiting.final(execution)
