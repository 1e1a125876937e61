"""Bounds the logs of a home: a log that has grown large becomes the previous one, and begins again.

A log is copied and then emptied, because its process keeps the file open. The process appends, so what it writes next
is at the beginning. A line that it writes between the last byte of the copy and the emptying is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path

# Of each file. One process has two: the log, and the previous one.
LOG_BYTES_MAX = 16 * 1024 * 1024
# A log grows beyond its bound by what is written meanwhile.
CHECK_SECONDS = 2.0


async def keep_bounded(directory: Path) -> None:
    """For ever: look at all logs of the directory."""
    while True:
        await asyncio.to_thread(_rotate_all, directory)
        await asyncio.sleep(CHECK_SECONDS)


def _rotate_all(directory: Path) -> None:
    for log in directory.glob("*.log"):
        # What fails for one log, now, must not leave all logs unbounded. It is tried again at the next look.
        with contextlib.suppress(OSError):
            rotate(log, LOG_BYTES_MAX)


def rotate(log: Path, bytes_max: int) -> None:
    """Begin the log again if it has more bytes, and keep the end of what it had."""
    if log.stat().st_size <= bytes_max:
        return
    previous = log.with_name(log.name + ".1")
    try:
        with log.open("rb") as source, previous.open("wb") as copy:
            source.seek(-bytes_max, 2)
            shutil.copyfileobj(source, copy)
        shutil.copystat(log, previous)
    except OSError:
        # The disk is full, or the copy may not be written. An old log is worth less than the stack.
        previous.unlink(missing_ok=True)
    with log.open("r+b") as emptied:
        emptied.truncate(0)
