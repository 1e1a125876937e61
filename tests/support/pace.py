"""Time that passes on purpose: the rhythm of a load, the random instants of a fault.

Never for waiting until something is so: that is tests/support/probe.py. Together they are the only ones below tests/
that sleep, so that a search for `pause` and `until` shows every place where a test takes time.
"""

import asyncio


async def pause(seconds: float) -> None:
    """Lets real time pass between two things that a test does; its verdict must not depend on how much."""
    await asyncio.sleep(seconds)
