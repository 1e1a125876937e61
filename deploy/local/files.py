"""Files that are whole or absent: written beside, synced, renamed into place.

Hazard: the rename replaces the owner and mode of what was there; secrets are created 0600, never narrowed
afterwards.
"""

import os
from pathlib import Path


def write_private(path: Path, line: str) -> None:
    """One line that only we may read; durable before it is relied upon."""
    _replace(path, line + "\n", mode=0o600)


def write_whole(path: Path, text: str) -> None:
    """A reader sees the old text or the new, never half of one."""
    _replace(path, text, mode=0o644)


def sync_directory(path: Path) -> None:
    """Make a rename in `path` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str, *, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    sync_directory(path.parent)
