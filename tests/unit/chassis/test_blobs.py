"""Values that come and leave in parts. Whole values are in tests/unit/runner/test_outputs.py."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.chassis.blobs import (
    PIECE_BYTES,
    BlobDiffers,
    BlobMissing,
    BlobTooLarge,
    DirectoryBlobs,
    is_blob_key,
    is_blob_of,
    month_of,
)
from tests.support.probe import until

OWNED = OWNER, MONTH = "default", "2026-08"
SEPTEMBER = datetime(2026, 9, 1, tzinfo=UTC)


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
    ref = await blobs.put_parts(parts_of(value[:7], value[7:]), len(value), *OWNED)
    assert ref == await blobs.put(value, *OWNED)
    assert await blobs.get(ref, OWNER) == value
    assert [len(part) async for part in blobs.get_parts(ref, OWNER)] == [PIECE_BYTES, 3]
    assert files_in(tmp_path) == [tmp_path / ref.key]
    assert is_blob_key(ref.key)


async def test_nothing_is_left_of_a_value_that_is_too_large_or_broken_off(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    with pytest.raises(BlobTooLarge):
        await blobs.put_parts(parts_of(b"four", b"more"), 7, *OWNED)
    with pytest.raises(ConnectionError):
        await blobs.put_parts(broken_off(), 7, *OWNED)
    assert files_in(tmp_path) == []


async def test_nothing_is_left_of_a_value_that_is_not_the_one_that_was_announced(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    digest = hashlib.sha256(b"value").hexdigest()
    with pytest.raises(BlobDiffers):
        async with blobs.unnamed(*OWNED) as unnamed:
            await blobs.put_unnamed(unnamed, parts_of(b"other"), 7, sha256=digest)
    assert files_in(tmp_path) == []
    async with blobs.unnamed(*OWNED) as unnamed:
        ref = await blobs.put_unnamed(unnamed, parts_of(b"value"), 7, sha256=digest)
        with pytest.raises(BlobMissing):
            await blobs.get(ref, OWNER)
        await blobs.name_all(unnamed)
        await blobs.name_all(unnamed)
    assert await blobs.get(ref, OWNER) == b"value"
    assert files_in(tmp_path) == [tmp_path / ref.key]


async def test_values_that_were_removed_are_not_named(tmp_path: Path) -> None:
    """Whoever names them may go on after those who sent them have gone."""
    blobs = DirectoryBlobs(tmp_path)
    async with blobs.unnamed(*OWNED) as unnamed:
        await blobs.put_unnamed(unnamed, parts_of(b"v"), 1, sha256=hashlib.sha256(b"v").hexdigest())
    with pytest.raises(BlobMissing):
        await blobs.name_all(unnamed)
    assert files_in(tmp_path) == []


async def test_unnamed_values_of_a_process_that_died_are_swept_and_those_of_others_stay(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    async with blobs.unnamed(*OWNED) as unnamed:
        ref = await blobs.put_unnamed(unnamed, parts_of(b"v"), 1, sha256=hashlib.sha256(b"v").hexdigest())
        dead = tmp_path / ".writing" / "dead"
        dead.mkdir()
        (dead / "value").write_bytes(b"v")
        assert await DirectoryBlobs(tmp_path).sweep() == 1
        assert not dead.exists()
        await blobs.name_all(unnamed)
    assert await blobs.get(ref, OWNER) == b"v"


async def test_nothing_is_left_of_a_value_whose_sender_goes_at_any_moment(tmp_path: Path) -> None:
    """A thread may be at work on the file just then, or have yet to begin. A call may be cancelled more than once."""
    blobs = DirectoryBlobs(tmp_path)
    for turns in range(60):
        sending = [asyncio.create_task(blobs.put_parts(without_end(), 1_000, *OWNED)) for _ in range(9)]
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
    ref = await blobs.put(b"value", *OWNED)
    for changed in (b"other", b"longer"):
        (tmp_path / ref.key).write_bytes(changed)
        with pytest.raises(BlobMissing):
            [part async for part in blobs.get_parts(ref, OWNER)]
    (tmp_path / ref.key).unlink()
    with pytest.raises(BlobMissing):
        [part async for part in blobs.get_parts(ref, OWNER)]


async def test_value_is_its_owners_alone(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    ref = await blobs.put(b"value", *OWNED)
    assert is_blob_of(ref, OWNER)
    assert not is_blob_of(ref, "elsewhere")
    assert not is_blob_of(ref._replace(sha256="0" * 64), OWNER)
    assert is_blob_of(ref, OWNER, MONTH)
    assert not is_blob_of(ref, OWNER, "2026-09")
    with pytest.raises(BlobMissing):
        await blobs.get(ref, "elsewhere")
    with pytest.raises(BlobMissing):
        [part async for part in blobs.get_parts(ref, "elsewhere")]


async def test_size_is_not_told_by_a_directory_that_is_not_the_store(tmp_path: Path) -> None:
    """It may be the place at which the disk of the store is to be mounted."""
    blobs, key = DirectoryBlobs(tmp_path / "outputs"), f"{'0' * 32}/2026-08-00/{'0' * 64}.json"
    (answer,) = await blobs.sizes([key])
    assert isinstance(answer, OSError)
    assert not isinstance(answer, FileNotFoundError)
    await blobs.make()
    (answer,) = await blobs.sizes([key])
    assert isinstance(answer, FileNotFoundError)


async def test_sizes_are_told_of_values_that_are_there(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    ref = await blobs.put(b"value", *OWNED)
    size, missing = await blobs.sizes([ref.key, ref.key.replace(".json", ".jsonx")])
    assert size == 5
    assert isinstance(missing, FileNotFoundError)
    with pytest.raises(BlobMissing, match="has 5 bytes, not 4"):
        await blobs.get(ref._replace(size_bytes=4), OWNER)


def test_month_is_that_of_the_id() -> None:
    assert month_of("019fcef6-0c00-7000-8000-000000000000") == MONTH
    assert month_of("01a06c5a-0400-7000-8000-000000000000") == "2026-09"


async def test_old_values_are_deleted_by_month(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path)
    used = await blobs.put(b"used today", *OWNED)
    old = [await blobs.put(b"%d" % number, owner, MONTH) for number in range(10) for owner in (OWNER, "elsewhere")]
    kept = await blobs.put(b"0", OWNER, "2026-09")
    for file in files_in(tmp_path):
        os.utime(file, (0, 0))
    # Stored again: an execution that was queued for long has begun.
    assert await blobs.put(b"used today", *OWNED) == used
    assert await blobs.delete_before(datetime(2026, 8, 31, tzinfo=UTC)) == 0
    assert await blobs.delete_before(SEPTEMBER) == len(old)
    assert await blobs.delete_before(SEPTEMBER) == 0
    assert sorted(files_in(tmp_path)) == sorted(tmp_path / ref.key for ref in (used, kept))


async def test_processes_delete_old_values_at_the_same_time(tmp_path: Path) -> None:
    blobs = [DirectoryBlobs(tmp_path) for _ in range(4)]
    for number in range(300):
        await blobs[0].put(b"%d" % number, *OWNED)
    for file in files_in(tmp_path):
        os.utime(file, (0, 0))
    assert sum(await asyncio.gather(*(each.delete_before(SEPTEMBER) for each in blobs))) == 300
    assert files_in(tmp_path) == []
