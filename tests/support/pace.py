"""Time passes on purpose, as the rhythm of a load or until the random instant of a fault.

Waiting for something to become true is in tests/support/probe.py. No other file below tests/ sleeps, so a search for
`pause`, `stall` and `until` finds every place where a test takes time.
"""

import asyncio
import time


async def pause(seconds: float) -> None:
    """Let real time pass between two actions of a test. The verdict must not depend on how much."""
    await asyncio.sleep(seconds)


def stall(seconds: float) -> None:
    """Keep the event loop from running, as a machine does that has no time for this process."""
    time.sleep(seconds)
