"""Awaits the effects of other processes. Only here does a test wait by the clock, and always for something.

Hazard: a probe that is true too early proves nothing. It should look at something that only the awaited change can
make.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

POLL_SECONDS = 0.02
T = TypeVar("T")


def some(value: T | None) -> T:
    """The value, which has to be there."""
    assert value is not None
    return value


async def until(probe: Callable[[], T | None], seconds: float, what: str) -> T:
    """The first true answer of the probe."""

    async def answer() -> T | None:
        return probe()

    return await eventually(answer, seconds, what)


async def eventually(probe: Callable[[], Awaitable[T | None]], seconds: float, what: str) -> T:
    """The first true answer of a probe that has to wait for each."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                if found := await probe():
                    return found
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise AssertionError(f"waited {seconds:g} s for {what}") from None


# Work that is done on the event loop lets others have one turn, and another one for each thread or lock that it awaits
# besides. How many they have while a thread does all of it depends on the machine.
INLINE_TURNS = 3


async def turns_during(work: Awaitable[T]) -> tuple[T, int]:
    """What the work comes to, and how often its event loop has served others meanwhile."""
    task, turns = asyncio.ensure_future(work), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    return await task, turns
