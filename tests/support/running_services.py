"""A whole service in this process, run as its `main` runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from services.chassis.process.config import Settings
from services.chassis.process.lifecycle import Process
from services.chassis.process.service import Service, start


class RunningService(NamedTuple):
    process: Process
    # Its exit code.
    ended: asyncio.Task[int]
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def stop(self) -> None:
        self.process.stop()
        assert await self.ended == 0


async def started(name: str, settings: Settings, join: Callable[[Settings], Service]) -> RunningService:
    process = Process(name, drain_seconds=settings.drain_seconds)
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wire(process: Process) -> None:
        port.set_result(await start(process, settings, join))

    ended = asyncio.create_task(process.run(wire))
    await asyncio.wait({ended, port}, return_when=asyncio.FIRST_COMPLETED)
    assert port.done(), f"{name} did not start"
    return RunningService(process, ended, port.result())
