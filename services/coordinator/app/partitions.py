"""Makes the partitions of a month before the month begins.

Any replica may do it, at any time and any number of times. If it is late, rows go to the default partition: nothing
breaks, but that month cannot be dropped as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.telemetry.logs import logger

log = logger(__name__)

_MONTHS_AHEAD: Final = 2
_EVERY_SECONDS: Final = 6 * 3_600.0
_RETRY_SECONDS: Final = 60.0


async def make_partitions(make_ahead: Callable[[int], Awaitable[int]]) -> None:
    """`make_ahead` makes the partitions of the given number of months, and returns how many it made."""
    while True:
        try:
            made = await make_ahead(_MONTHS_AHEAD)
        except DependencyUnavailable as failure:
            log.warning("partitions could not be made", error=str(failure))
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        if made:
            log.info("made partitions", months=made)
        await asyncio.sleep(_EVERY_SECONDS)
