"""Keeps large values in a local directory, durable before anything names them.

A value is written to a temporary file, which is fsynced and renamed; then its directory is fsynced, and once also the
directories above. After `put` has returned, no crash of the process or the machine loses the value, and a file under
its final name is always whole. The name holds the hash: writing the same value twice is harmless, even at the same
time, and every read is checked.

Each value belongs to an owner, whose digest begins the name. Whoever reads says whose value it must be, so a name that
came from elsewhere opens nothing of another owner.

The name also holds a month: that in which whatever names the value was made. Values are deleted by this month, once
nothing names them any more (`delete_before`).

A value that comes in parts, or leaves in parts, is never in memory as a whole.

Values may also come one after the other and get their names together (`unnamed`), when it is known that all are wanted.
Before that they are in a temporary folder.

Hazard: a crash in the middle leaves the temporary file or folder behind, and the next process that starts removes it. A
process that lives locks its temporary file until that has its final name; the lock of a dead process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypeVar
from uuid import uuid4

from services.chassis.process.crash import crash_point
from services.chassis.telemetry.logs import logger

log = logger(__name__)

# Several writes may wait for the disk at once.
_THREADS = 4
# A value that leaves in parts is read in pieces of this size.
PIECE_BYTES = 256 * 1024

_WRITING = ".writing"
_KEY = re.compile(r"([0-9a-f]{32})/(\d{4}-\d{2})-[0-9a-f]{2}/([0-9a-f]{64})\.json", re.ASCII)
_FOLDER = re.compile(r"(\d{4}-\d{2})-[0-9a-f]{2}", re.ASCII)
# When more directories than this are known to be durable, all are forgotten and synced again.
_DURABLE_MAX = 10_000
# A younger file may be named by what was made long ago and is at work only now.
_LEFT_ALONE_SECONDS = 86_400.0
# Files that are deleted in one call.
_DELETED_MAX = 1_000


class NamesBlob(Protocol):
    """Whatever names a value of the store."""

    @property
    def key(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...


class BlobRef(NamedTuple):
    key: str
    # Hexadecimal.
    sha256: str
    size_bytes: int


class BlobMissing(Exception):
    """The store has lost or changed a value."""


class BlobTooLarge(Exception):
    """More bytes came than the caller takes."""


class BlobDiffers(Exception):
    """What came has another hash than the caller was told."""


class _CanClose(Protocol):
    def close(self) -> None: ...


_T = TypeVar("_T")
_Closes = TypeVar("_Closes", bound=_CanClose)


class DirectoryBlobs:
    """One directory, shared by all processes of the machine that use it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # The directories that this process has made durable in their parents.
        self._durable: set[Path] = set()
        # It has threads of its own, so that nothing else in the process can delay it.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="blobs")

    async def put(self, value: bytes, owner: str, month: str) -> BlobRef:
        """Keep a value of this owner, which is durable on return. `month` is what `month_of` returns."""
        return await self._in_thread(self._put, value, owner, month)

    async def put_parts(self, parts: AsyncIterator[bytes], bytes_max: int, owner: str, month: str) -> BlobRef:
        """Keep a value that comes in parts. It is durable on return. Raises BlobTooLarge; then nothing is kept."""
        unfinished = await self._opened(self._unfinished)
        try:
            ref = blob_ref(owner, month, *await self._written(unfinished.file, parts, bytes_max))
            await self._in_thread(self._finish, unfinished, self._directory / ref.key)
        finally:
            await self._closed(unfinished)
        return ref

    @contextlib.asynccontextmanager
    async def unnamed(self, owner: str, month: str) -> AsyncIterator[UnnamedBlobs]:
        """Values of this owner that nobody can read until `name_all`. What has no name in the end is removed."""
        unnamed = UnnamedBlobs(self._directory / _WRITING / uuid4().hex, owner, month)
        try:
            yield unnamed
        finally:
            await self._closed(unnamed)

    async def put_unnamed(
        self, unnamed: UnnamedBlobs, parts: AsyncIterator[bytes], bytes_max: int, *, sha256: str
    ) -> BlobRef:
        """Add a value that comes in parts. Raises BlobTooLarge, or BlobDiffers if its hash is not the one that was
        given; then none of them should be named."""
        name = Path(blob_ref(unnamed.owner, unnamed.month, sha256, 0).key).name
        file = await self._opened(self._open_unnamed, unnamed, name)
        try:
            ref = blob_ref(unnamed.owner, unnamed.month, *await self._written(file, parts, bytes_max))
            if ref.sha256 != sha256:
                raise BlobDiffers(ref.key)
            await self._in_thread(_sync_file, file)
        finally:
            await self._closed(file)
        return ref

    async def name_all(self, unnamed: UnnamedBlobs) -> None:
        """From now on they can be read, and are durable. A repeat does no harm. Raises BlobMissing if they were removed
        meanwhile; then none has a name."""
        await self._in_thread(self._name_all, unnamed)

    async def get(self, ref: NamesBlob, owner: str) -> bytes:
        """A value as it was put. Raises BlobMissing, also if it is not this owner's."""
        return await self._in_thread(self._get, ref, owner)

    async def get_parts(self, ref: NamesBlob, owner: str) -> AsyncIterator[bytes]:
        """The value in parts. Raises BlobMissing, after the last part if the value is not what it was."""
        digest, file = hashlib.sha256(), await self._opened(self._open, ref, owner)
        try:
            while part := await self._in_thread(file.read, PIECE_BYTES):
                digest.update(part)
                yield part
        finally:
            await self._closed(file)
        _check(ref, digest.hexdigest())

    async def sizes(self, keys: Sequence[str]) -> list[int | OSError]:
        """The size in bytes of each value, or why it cannot be told: FileNotFoundError if it is not there, any other
        OSError if the disk does not say.
        """
        return await self._in_thread(lambda: [self._size(key) for key in keys])

    async def delete_before(self, since: datetime) -> int:
        """Delete some values of months before the month of this time; return their number."""
        deleted = await self._in_thread(self._delete_before, since)
        if deleted:
            log.info("old values are deleted", files=deleted, since=since.isoformat())
        return deleted

    async def make(self) -> None:
        """Make the directory, unless it is there. `sizes` tells it from an empty one by this."""
        await self._in_thread(lambda: (self._directory / _WRITING).mkdir(parents=True, exist_ok=True))

    async def sweep(self) -> int:
        """Remove the temporary files of writers that died; return their number."""
        swept = await self._in_thread(self._sweep)
        if swept:
            log.info("values that were never finished are removed", files=swept)
        return swept

    async def _written(self, file: IO[bytes], parts: AsyncIterator[bytes], bytes_max: int) -> tuple[str, int]:
        """Returns the hash and the size of the value."""
        digest, size_bytes = hashlib.sha256(), 0
        async for part in parts:
            size_bytes += len(part)
            if size_bytes > bytes_max:
                raise BlobTooLarge(f"over {bytes_max} bytes")
            digest.update(part)
            await self._in_thread(file.write, part)
        return digest.hexdigest(), size_bytes

    async def _in_thread(self, work: Callable[..., _T], *given: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *given)

    async def _opened(self, opens: Callable[..., _Closes], *given: Any) -> _Closes:
        """Opens something in a thread. If the caller goes meanwhile, it is closed there."""
        opening = self._threads.submit(opens, *given)
        try:
            return await asyncio.wrap_future(opening)
        except BaseException:
            opening.add_done_callback(_close)
            raise

    async def _closed(self, opened: _CanClose) -> None:
        """Close it in a thread, also when the caller is cancelled again before the thread has begun."""
        await asyncio.shield(asyncio.wrap_future(self._threads.submit(opened.close)))

    def _sweep(self) -> int:
        swept = 0
        for left in (self._directory / _WRITING).glob("*"):
            # OSError: it is locked, or was just renamed or removed by another, or this disk has no locks.
            with contextlib.suppress(OSError):
                _remove_unlocked(left)
                swept += 1
        return swept

    def _delete_before(self, since: datetime) -> int:
        deleted = 0
        for folder in sorted(self._directory.glob("*/*-*-*")):
            found = _FOLDER.fullmatch(folder.name)
            if found is None or found[1] >= since.strftime("%Y-%m"):
                continue
            deleted += _delete_old(folder, _DELETED_MAX - deleted)
            if deleted == _DELETED_MAX:
                break
            with contextlib.suppress(OSError):  # it is not empty, or gone
                folder.rmdir()
            self._durable.discard(folder)
        return deleted

    def _size(self, key: str) -> int | OSError:
        try:
            return self._found_size(key)
        except OSError as failure:
            return failure

    def _found_size(self, key: str) -> int:
        place = self._directory / key
        try:
            return place.stat().st_size
        except FileNotFoundError:
            # A disk that is not mounted has no values either, and not the directory that the store always has. It may
            # have been mounted between the two looks.
            if (self._directory / _WRITING).is_dir():
                return place.stat().st_size
            raise OSError(errno.ENODEV, f"{self._directory} is not the store, or its disk is not mounted") from None

    def _put(self, value: bytes, owner: str, month: str) -> BlobRef:
        ref = blob_ref(owner, month, hashlib.sha256(value).hexdigest(), len(value))
        place = self._directory / ref.key
        try:
            # The file was used now, so that `delete_before` leaves it alone.
            os.utime(place)
            self._make_durable(place)
        except FileNotFoundError:
            unfinished = self._unfinished()
            try:
                unfinished.file.write(value)
                self._finish(unfinished, place)
            finally:
                unfinished.close()
        return ref

    def _unfinished(self) -> _Unfinished:
        self._make(self._directory)
        beside = self._directory / _WRITING
        beside.mkdir(exist_ok=True)
        while (made := _Unfinished.begin(beside / uuid4().hex)) is None:
            pass
        return made

    def _finish(self, unfinished: _Unfinished, place: Path) -> None:
        for directory in (self._directory, place.parent.parent, place.parent):
            self._make(directory)
        _sync_file(unfinished.file)
        crash_point("blob.named.before")
        unfinished.path.replace(place)
        self._make_durable(place)

    def _open_unnamed(self, unnamed: UnnamedBlobs, name: str) -> IO[bytes]:
        self._make(self._directory)
        unnamed.path.parent.mkdir(exist_ok=True)
        return unnamed.open(name)

    def _name_all(self, unnamed: UnnamedBlobs) -> None:
        places: dict[Path, Path] = {}
        with unnamed.files() as names:
            for name in names:
                file = unnamed.path / name
                place = self._directory / blob_ref(unnamed.owner, unnamed.month, file.stem, 0).key
                for directory in (self._directory, place.parent.parent, place.parent):
                    self._make(directory)
                file.replace(place)
                places[place.parent] = place
            for place in places.values():
                self._make_durable(place)

    def _make_durable(self, place: Path) -> None:
        """This is needed even when the file was there already, because its writer may not have come this far."""
        for directory in (self._directory, place.parent.parent, place.parent):
            self._make(directory)
        _sync_directory(place.parent)

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
        if len(self._durable) >= _DURABLE_MAX:
            self._durable.clear()
        self._durable.add(directory)

    def _get(self, ref: NamesBlob, owner: str) -> bytes:
        with self._open(ref, owner) as file:
            value = file.read()
        _check(ref, hashlib.sha256(value).hexdigest())
        return value

    def _open(self, ref: NamesBlob, owner: str) -> IO[bytes]:
        if not is_blob_of(ref, owner):
            raise BlobMissing(ref.key)
        try:
            file = (self._directory / ref.key).open("rb")
        except FileNotFoundError:
            raise BlobMissing(ref.key) from None
        # The reference says how large the value is, and limits rely on that.
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes != ref.size_bytes:
            file.close()
            raise BlobMissing(f"{ref.key} has {size_bytes} bytes, not {ref.size_bytes}")
        return file


class _Unfinished:
    """A temporary file that this process has locked."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self.file = file

    @classmethod
    def begin(cls, path: Path) -> _Unfinished | None:
        """None when the file was swept away before it could be locked."""
        file = path.open("xb")
        with contextlib.suppress(OSError):  # on a disk without locks nothing is swept
            fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists():
            return cls(path, file)
        file.close()
        return None

    def close(self) -> None:
        """Unlocks it, and removes it unless it has its final name."""
        self.path.unlink(missing_ok=True)
        self.file.close()


class UnnamedBlobs:
    """A temporary folder that this process has locked. It is made for the first value. Its methods are for threads,
    which take turns."""

    def __init__(self, path: Path, owner: str, month: str) -> None:
        self.path = path
        self.owner = owner
        self.month = month
        self._turn = threading.Lock()
        # None: there is no folder yet.
        self._handle: int | None = None
        self._is_closed = False

    def open(self, name: str) -> IO[bytes]:
        with self._turn:
            if self._is_closed:
                raise FileNotFoundError(self.path)
            while self._handle is None:
                self.path.mkdir()
                self._handle = _locked_folder(self.path)
            return (self.path / name).open("wb")

    @contextlib.contextmanager
    def files(self) -> Iterator[Sequence[str]]:
        """Their names. They are not removed meanwhile."""
        with self._turn:
            if self._is_closed:
                raise BlobMissing(f"{self.path} was removed")
            yield [] if self._handle is None else [each.name for each in self.path.iterdir()]

    def close(self) -> None:
        with self._turn:
            self._is_closed = True
            if self._handle is not None:
                shutil.rmtree(self.path, ignore_errors=True)
                os.close(self._handle)
                self._handle = None


def _locked_folder(path: Path) -> int | None:
    """None when the folder was swept away before it could be locked."""
    with contextlib.suppress(FileNotFoundError):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # on a disk without locks nothing is swept
            fcntl.flock(handle, fcntl.LOCK_EX)
        if path.exists():
            return handle
        os.close(handle)
    return None


def _remove_unlocked(path: Path) -> None:
    """Remove a file, or a folder with all that is in it. Raises OSError if a process has locked it."""
    is_folder = path.is_dir()
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_folder:
            shutil.rmtree(path)
        else:
            path.unlink()
    finally:
        os.close(handle)


def _sync_file(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _delete_old(folder: Path, files_max: int) -> int:
    """Returns the number of deleted files. FileNotFoundError: another process has deleted the folder or the file."""
    latest, deleted, files = time.time() - _LEFT_ALONE_SECONDS, 0, list[Path]()
    with contextlib.suppress(FileNotFoundError):
        files.extend(folder.iterdir())
    for file in files:
        if deleted == files_max:
            break
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_mtime < latest:
                file.unlink()
                deleted += 1
    return deleted


def is_blob_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None


def is_blob_of(ref: NamesBlob, owner: str, month: str | None = None) -> bool:
    """The name is one that the store gives to a value of this owner with this hash, and of this month, if one is given.
    The value may not be there."""
    found = _KEY.fullmatch(ref.key)
    return found is not None and found.groups() == (_folder(owner), found[2] if month is None else month, ref.sha256)


def month_of(uuid7: str) -> str:
    """The month in which something was made, like 2026-08. Its id is a UUIDv7, which begins with the time."""
    return datetime.fromtimestamp(int(uuid7.replace("-", "")[:12], 16) / 1_000, UTC).strftime("%Y-%m")


def _folder(owner: str) -> str:
    return hashlib.sha256(owner.encode()).hexdigest()[:32]


def blob_ref(owner: str, month: str, digest: str, size_bytes: int) -> BlobRef:
    """What the store names a value of this owner, whether it is there or not. `digest` is its SHA-256."""
    return BlobRef(f"{_folder(owner)}/{month}-{digest[:2]}/{digest}.json", digest, size_bytes)


def _close(opening: Future[_Closes]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _check(ref: NamesBlob, digest: str) -> None:
    if digest != ref.sha256:
        raise BlobMissing(f"{ref.key} is not what it was")


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
