"""Values that come and leave in parts. Whole values are in tests/unit/runner/test_outputs.py."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from services.chassis.blobs import PIECE_BYTES, BlobMissing, BlobTooLarge, DirectoryBlobs, is_blob_key
from tests.support.probe import until

# A UUIDv7 of August 2026.
OWNER_ID = "019fcef6-0c00-7000-8000-000000000000"


async def parts_of(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def broken_off() -> AsyncIterator[bytes]:
    yield b"half"
    raise ConnectionError


async def without_end() -> AsyncIterator[bytes]:
    yield b"half"
    await asyncio.Event().wait()


def files_in(directory: Path) -> Iterable[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


async def test_value_that_comes_in_parts_is_the_same_as_one_that_comes_whole(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    value = b"x" * PIECE_BYTES + b"end"
    ref = await blobs.put_parts(parts_of(value[:7], value[7:]), len(value), OWNER_ID)
    assert ref == await blobs.put(value, OWNER_ID)
    assert await blobs.get(ref) == value
    assert [len(part) async for part in blobs.get_parts(ref)] == [PIECE_BYTES, 3]
    assert files_in(tmp_path) == [tmp_path / ref.key]
    assert is_blob_key(ref.key)


async def test_nothing_is_left_of_a_value_that_is_too_large_or_broken_off(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    with pytest.raises(BlobTooLarge):
        await blobs.put_parts(parts_of(b"four", b"more"), 7, OWNER_ID)
    with pytest.raises(ConnectionError):
        await blobs.put_parts(broken_off(), 7, OWNER_ID)
    assert files_in(tmp_path) == []


async def test_nothing_is_left_of_a_value_whose_sender_goes_at_any_moment(tmp_path: Path) -> None:
    """A thread may be at work on the file just then, or have yet to begin. A call may be cancelled more than once."""
    blobs = DirectoryBlobs(tmp_path)
    for turns in range(60):
        sending = [asyncio.create_task(blobs.put_parts(without_end(), 1_000, OWNER_ID)) for _ in range(9)]
        for _ in range(turns % 6):
            await asyncio.sleep(0)
        for _ in range(3):
            for each in sending:
                each.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*sending, return_exceptions=True)
    await until(lambda: not files_in(tmp_path), 10, "the files to be removed")


async def test_value_that_is_gone_or_changed_is_missing(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    ref = await blobs.put(b"value", OWNER_ID)
    for changed in (b"other", b"longer"):
        (tmp_path / ref.key).write_bytes(changed)
        with pytest.raises(BlobMissing):
            [part async for part in blobs.get_parts(ref)]
    (tmp_path / ref.key).unlink()
    with pytest.raises(BlobMissing):
        [part async for part in blobs.get_parts(ref)]
