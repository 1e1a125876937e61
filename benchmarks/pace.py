"""Starts executions at the same pace for Windlass and for each peer. `run` starts one and waits for its end."""

import asyncio
import time
from collections.abc import Awaitable, Callable

IN_FLIGHT = 256
RunOne = Callable[[], Awaitable[None]]


async def one_by_one(run: RunOne, count: int = 200) -> list[float]:
    """Milliseconds for each execution."""
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        await run()
        times.append((time.perf_counter() - begun) * 1e3)
    return times


async def many_at_once(run: RunOne, count: int = 2_000, in_flight: int = IN_FLIGHT) -> float:
    """Seconds for all executions, with at most `in_flight` of them at once."""
    gate = asyncio.Semaphore(in_flight)

    async def one() -> None:
        async with gate:
            await run()

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    return time.perf_counter() - begun
