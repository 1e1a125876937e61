"""Large outputs on a local directory, durable before they are named.

A value is written to a temporary file of its own, fsynced, renamed to its place, and the directory fsynced, once also
those above it: after `put` returns, neither a crash of this process nor of the machine loses it, and what stands at a
value's place is whole.
The name holds the hash, so that writing the same value twice, also at once, is harmless, and every read is checked
against it.

Hazard: a crash in the middle leaves the temporary file, in a folder for those. Whoever starts next sweeps it away: the
lock of its writer has gone with the writer, while a file of another runner that lives is locked until it has its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

from services.chassis.process.crash import crash_point
from services.chassis.telemetry.logs import logger
from services.runner.core.job import OutputMissing, OutputRef

log = logger(__name__)

# Writes wait for the disk, not for each other.
_THREADS = 4

_WRITING = ".writing"
_KEY = re.compile(r"[0-9a-f]{2}/[0-9a-f]{64}\.json")


class DirectoryOutputs:
    """One directory, shared by all runners of the machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # Those that this process knows to be durable in their parents.
        self._durable: set[Path] = set()
        # Its own threads: no module, and nothing else in the process, can keep a result from being kept.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="outputs")

    async def put(self, value: bytes) -> OutputRef:
        """Keep a value; durable on return."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._put, value)

    async def get(self, ref: OutputRef) -> bytes:
        """A value as it was put."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._get, ref)

    async def sweep(self) -> int:
        """Remove what writers that died have left; how many files."""
        swept = await asyncio.get_running_loop().run_in_executor(self._threads, self._sweep)
        if swept:
            log.info("outputs that were never finished are removed", files=swept)
        return swept

    def _sweep(self) -> int:
        swept = 0
        for left in (self._directory / _WRITING).glob("*"):
            # What is locked, or was named or swept by others just now, is left alone; all is where no lock can be had.
            with contextlib.suppress(OSError), left.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
                swept += 1
        return swept

    def _put(self, value: bytes) -> OutputRef:
        digest = hashlib.sha256(value).hexdigest()
        ref = OutputRef(f"{digest[:2]}/{digest}.json", digest, len(value))
        place = self._directory / ref.key
        self._make(self._directory)
        self._make(place.parent)
        if not place.exists():
            beside = self._directory / _WRITING
            beside.mkdir(exist_ok=True)
            while not _write(place, value, beside / uuid4().hex):
                pass
        # Also when it is there: whoever made it may not have come as far.
        _sync_directory(place.parent)
        crash_point("runner.output.after")
        return ref

    def _make(self, directory: Path) -> None:
        """A directory that is durable in its parent: for this process once, also when another one made it."""
        if not directory.is_dir():
            directory.mkdir(parents=True, exist_ok=True)
        elif directory in self._durable:
            return
        try:
            _sync_directory(directory.parent)
        except PermissionError:
            # What is above the store may be closed to a runner: whoever made the store there answers for it.
            if directory != self._directory:
                raise
        self._durable.add(directory)

    def _get(self, ref: OutputRef) -> bytes:
        if not _KEY.fullmatch(ref.key):
            raise OutputMissing(ref.key)
        try:
            value = (self._directory / ref.key).read_bytes()
        except FileNotFoundError:
            raise OutputMissing(ref.key) from None
        if hashlib.sha256(value).hexdigest() != ref.sha256:
            raise OutputMissing(f"{ref.key} is not what it was")
        return value


def _write(place: Path, value: bytes, temporary: Path) -> bool:
    """False: it was swept away before it could be locked."""
    try:
        with temporary.open("xb") as file:
            with contextlib.suppress(OSError):  # where nothing can be locked, nothing is swept
                fcntl.flock(file, fcntl.LOCK_EX)
            if not temporary.exists():
                return False
            file.write(value)
            file.flush()
            os.fsync(file.fileno())
            crash_point("runner.output.before")
            temporary.replace(place)
            return True
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
