"""Send a signal to a child that asyncio watches.

Hazard: `Process.send_signal`, `terminate` and `kill` ask for the exit code on the way; when the child ends in that very
moment they take it from asyncio's watcher, which then reports 255 for a clean end.
"""

import contextlib
import os
import signal


def tell(pid: int, number: signal.Signals) -> None:
    """Nothing happens when it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
