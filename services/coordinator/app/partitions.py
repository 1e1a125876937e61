"""Makes the partitions of a month before the month begins, and drops those of months that are not kept any more, with
the stored outputs of such months.

Any replica may do both, at any time and any number of times. If a partition is made late, its rows go to the default
partition: nothing breaks, but they are deleted one by one instead of being dropped as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.telemetry.logs import logger

log = logger(__name__)

_MONTHS_AHEAD: Final = 2
_EVERY_SECONDS: Final = 6 * 3_600.0
_RETRY_SECONDS: Final = 60.0


async def keep_partitions(
    *,
    make_ahead: Callable[[int], Awaitable[int]],
    drop_old: Callable[[], Awaitable[Sequence[str]]],
    kept_since: Callable[[], Awaitable[datetime | None]],
    delete_outputs: Callable[[datetime], Awaitable[int]],
) -> None:
    """`make_ahead` makes the partitions of the given number of months, and returns how many it made. `drop_old` returns
    the months that it dropped. `delete_outputs` deletes some outputs of the months before that of `kept_since`, and
    returns how many."""
    while True:
        try:
            made, dropped = await make_ahead(_MONTHS_AHEAD), await drop_old()
            if (since := await kept_since()) is not None:
                while await delete_outputs(since):
                    pass
        except (DependencyUnavailable, OSError) as failure:
            log.warning("partitions could not be looked after", error=str(failure))
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        if made or dropped:
            log.info("made and dropped partitions", made=made, dropped=dropped)
        await asyncio.sleep(_EVERY_SECONDS)
