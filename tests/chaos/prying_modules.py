"""A module that looks for a secret wherever its process can read: in files, and in what the kernel shows of others."""

import ctypes
import os
import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from windlass.sdk import Context, module

# A service secret, in hexadecimal.
WORD = re.compile(rb"[0-9a-f]{64}")
PIDFD_GETFD = 438
_libc = ctypes.CDLL(None, use_errno=True)


def places_of(digest: str, folder: str, pids: Sequence[int]) -> list[str]:
    """Where the secret with this SHA-256 is found."""
    found = (place for place, text in _readable(Path(folder), pids) if _holds(text, digest))
    return sorted(set(found))


def _holds(text: bytes, digest: str) -> bool:
    return any(sha256(word).hexdigest() == digest for word in set(WORD.findall(text)))


def _readable(folder: Path, pids: Sequence[int]) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        yield from _content(path)
    for pid in pids:
        shown = Path("/proc") / str(pid)
        for path in (shown / "environ", shown / "cmdline", *_names(shown / "fd")):
            yield from _content(path)
        yield from _memory(shown)
        yield from _taken(pid)


def _names(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _content(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        # Pipes and terminals have no end.
        if path.is_file():
            yield str(path), path.read_bytes()
    except OSError:
        return


def _memory(shown: Path) -> Iterator[tuple[str, bytes]]:
    try:
        regions = [line.split() for line in (shown / "maps").read_text().splitlines()]
        memory = os.open(shown / "mem", os.O_RDONLY)
    except OSError:
        return
    try:
        for region in regions:
            first, end = (int(each, 16) for each in region[0].split("-"))
            if region[1].startswith("rw"):
                try:
                    yield str(shown / "mem"), os.pread(memory, end - first, first)
                except (OSError, OverflowError):
                    continue
    finally:
        os.close(memory)


def _taken(pid: int) -> Iterator[tuple[str, bytes]]:
    """Copies of its open files."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    for number in range(3, 64):
        taken = _libc.syscall(PIDFD_GETFD, process, number, 0)
        if taken >= 0:
            yield from _content(Path(f"/proc/self/fd/{taken}"))
            os.close(taken)
    os.close(process)


@module("attack.pries@1")
def pries(_ctx: Context, _inputs: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    return {"places": places_of(**config)}
