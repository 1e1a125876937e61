"""Keeps large outputs in a local directory, durable before anything names them.

A value is written to a temporary file, which is fsynced and renamed; then its directory is fsynced, and once also the
directories above. After `put` has returned, no crash of the process or the machine loses the value, and a file under
its final name is always whole. The name holds the hash: writing the same value twice is harmless, even at the same
time, and every read is checked.

The name also holds the month in which the execution was created: the rows of an execution are dropped by this month,
and `delete_before` deletes what nothing names any more.

Hazard: a crash in the middle leaves the temporary file behind, and the next runner that starts removes it. A runner
that lives locks its temporary file until that has its final name; the lock of a dead runner is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from services.chassis.process.crash import crash_point
from services.chassis.telemetry.logs import logger
from services.runner.core.job import OutputMissing, StoredOutput

log = logger(__name__)

# Several writes may wait for the disk at once.
_THREADS = 4

_WRITING = ".writing"
_KEY = re.compile(r"\d{4}-\d{2}-[0-9a-f]{2}/[0-9a-f]{64}\.json")
_FOLDER = re.compile(r"(\d{4}-\d{2})-[0-9a-f]{2}")
# A younger file may belong to an execution that was created long ago and has just begun.
_LEFT_ALONE_SECONDS = 86_400.0
# Files that are deleted in one call.
_DELETED_MAX = 1_000


def month_of(execution_id: str) -> str:
    """The month in which an execution was created, like 2026-08. Its id is a UUIDv7, which begins with the time."""
    return datetime.fromtimestamp(int(execution_id.replace("-", "")[:12], 16) / 1_000, UTC).strftime("%Y-%m")


class DirectoryOutputs:
    """One directory, shared by all runners of the machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # The directories that this process has made durable in their parents.
        self._durable: set[Path] = set()
        # It has threads of its own, so that nothing else in the process can delay it.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="outputs")

    async def put(self, value: bytes, execution_id: str) -> StoredOutput:
        """Keep a value of an execution. It is durable on return."""
        month = month_of(execution_id)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._put, value, month)

    async def get(self, ref: StoredOutput) -> bytes:
        """A value as it was put. Raises OutputMissing."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._get, ref)

    async def delete_before(self, since: datetime) -> int:
        """Delete some values of executions that were created before the month of this time; return their number."""
        deleted = await asyncio.get_running_loop().run_in_executor(self._threads, self._delete_before, since)
        if deleted:
            log.info("outputs of old executions are deleted", files=deleted, since=since.isoformat())
        return deleted

    async def sweep(self) -> int:
        """Remove the temporary files of writers that died; return their number."""
        swept = await asyncio.get_running_loop().run_in_executor(self._threads, self._sweep)
        if swept:
            log.info("outputs that were never finished are removed", files=swept)
        return swept

    def _sweep(self) -> int:
        swept = 0
        for left in (self._directory / _WRITING).glob("*"):
            # OSError: the file is locked, or was just renamed or removed by another, or this disk has no locks.
            with contextlib.suppress(OSError), left.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
                swept += 1
        return swept

    def _delete_before(self, since: datetime) -> int:
        latest = time.time() - _LEFT_ALONE_SECONDS
        deleted = 0
        for folder in sorted(self._directory.glob("*-*-*")):
            found = _FOLDER.fullmatch(folder.name)
            if found is None or found[1] >= since.strftime("%Y-%m"):
                continue
            for file in folder.iterdir():
                if deleted == _DELETED_MAX:
                    return deleted
                # FileNotFoundError: another runner has deleted it.
                with contextlib.suppress(FileNotFoundError):
                    if file.stat().st_mtime < latest:
                        file.unlink()
                        deleted += 1
            with contextlib.suppress(OSError):  # it is not empty, or gone
                folder.rmdir()
            self._durable.discard(folder)
        return deleted

    def _put(self, value: bytes, month: str) -> StoredOutput:
        digest = hashlib.sha256(value).hexdigest()
        ref = StoredOutput(f"{month}-{digest[:2]}/{digest}.json", digest, len(value))
        place = self._directory / ref.key
        self._make(self._directory)
        self._make(place.parent)
        try:
            # The file was used now, so that `delete_before` leaves it alone.
            os.utime(place)
        except FileNotFoundError:
            beside = self._directory / _WRITING
            beside.mkdir(exist_ok=True)
            while not _write(place, value, beside / uuid4().hex):
                pass
        # This is needed even when the file was there already, because its writer may not have come this far.
        _sync_directory(place.parent)
        crash_point("runner.output.after")
        return ref

    def _make(self, directory: Path) -> None:
        """Make a directory durable in its parent, once per process, also when another process has made it."""
        if not directory.is_dir():
            directory.mkdir(parents=True, exist_ok=True)
        elif directory in self._durable:
            return
        try:
            _sync_directory(directory.parent)
        except PermissionError:
            # A runner may not be allowed to open the parent of the store. Then the store's maker made it durable.
            if directory != self._directory:
                raise
        self._durable.add(directory)

    def _get(self, ref: StoredOutput) -> bytes:
        if not _KEY.fullmatch(ref.key):
            raise OutputMissing(ref.key)
        try:
            with (self._directory / ref.key).open("rb") as file:
                # Whoever reported it said how large it is, and limits rest on that.
                size_bytes = os.fstat(file.fileno()).st_size
                if size_bytes != ref.size_bytes:
                    raise OutputMissing(f"{ref.key} has {size_bytes} bytes, not {ref.size_bytes}")
                value = file.read()
        except FileNotFoundError:
            raise OutputMissing(ref.key) from None
        if hashlib.sha256(value).hexdigest() != ref.sha256:
            raise OutputMissing(f"{ref.key} is not what it was")
        return value


def _write(place: Path, value: bytes, temporary: Path) -> bool:
    """Write a value by way of a temporary file. False when that was swept away before it could be locked."""
    try:
        with temporary.open("xb") as file:
            with contextlib.suppress(OSError):  # on a disk without locks nothing is swept
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
