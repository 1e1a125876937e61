"""Large outputs on a local directory, durable before they are named.

A value is written to a temporary file, fsynced, renamed to its place, and the directory fsynced: after `put` returns,
neither a crash of this process nor of the machine loses it, and a half-written value is never visible. The name holds
the hash, so that writing the same value twice is harmless, and every read is checked against it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from pathlib import Path

from services.chassis.crash import crash_point
from services.runner.core.job import OutputRef

_KEY = re.compile(r"[0-9a-f]{2}/[0-9a-f]{64}\.json")


class OutputMissing(Exception):
    """The value is not there, or not what it was."""


class DirectoryOutputs:
    """One directory, shared by all runners of the machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def put(self, value: bytes) -> OutputRef:
        """Keep a value; durable on return."""
        return await asyncio.to_thread(self._put, value)

    async def get(self, ref: OutputRef) -> bytes:
        """A value as it was put."""
        return await asyncio.to_thread(self._get, ref)

    def _put(self, value: bytes) -> OutputRef:
        digest = hashlib.sha256(value).hexdigest()
        ref = OutputRef(f"{digest[:2]}/{digest}.json", digest, len(value))
        place = self._directory / ref.key
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            _sync_directory(self._directory)
            temporary = place.with_name(f".{digest}.{os.getpid()}")
            with temporary.open("wb") as file:
                file.write(value)
                file.flush()
                os.fsync(file.fileno())
            crash_point("runner.output.before")
            temporary.replace(place)
            _sync_directory(place.parent)
            crash_point("runner.output.after")
        return ref

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


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
