"""Writes files that are whole or absent (a temporary file is synced and renamed), and locks files.

Hazard: the rename replaces owner and mode of the old file. Secrets are created with mode 0600, never narrowed later.
"""

import fcntl
import os
from pathlib import Path


def write_private(path: Path, line: str) -> None:
    """One line that only we may read, durable on return."""
    write_whole(path, line + "\n", mode=0o600)


def write_whole(path: Path, text: str, *, mode: int = 0o644) -> None:
    """A reader sees the old text or the new, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make a rename in `path` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, how: int = fcntl.LOCK_EX) -> bool:
    """True when no other process holds the lock of this open file. Then we hold it until the file is closed."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
