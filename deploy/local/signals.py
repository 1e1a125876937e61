"""Sends a signal to a child that asyncio watches.

Hazard: `Process.send_signal`, `terminate` and `kill` ask for the exit code first. When the child ends at that moment,
they take the code away from asyncio's watcher, which then reports 255 for a clean end.
"""

import contextlib
import os
import signal


def tell(pid: int, number: signal.Signals) -> None:
    """Send the signal, unless the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
