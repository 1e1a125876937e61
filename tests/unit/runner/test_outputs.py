"""Large outputs are kept in a directory, whoever writes them."""

import asyncio
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.runner.core.job import OutputMissing, StoredOutput
from services.runner.store.outputs import DirectoryOutputs
from tests.support.runner_bench import RUN_LEASE


def files_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


async def test_equal_outputs_are_kept_at_once(tmp_path: Path) -> None:
    outputs = DirectoryOutputs(tmp_path)
    for number in range(10):
        value = b"%d" % number + b"x" * 1_000_000
        refs = await asyncio.gather(*(outputs.put(value, RUN_LEASE) for _ in range(4)))
        assert len(set(refs)) == 1
        assert await outputs.get(refs[0]) == value
    assert len(files_in(tmp_path)) == 10


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The paths that were fsynced, in order."""
    found: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda handle: found.append(Path(f"/proc/self/fd/{handle}").readlink()))
    return found


async def test_an_output_that_is_there_is_made_durable_all_the_same(tmp_path: Path, synced: list[Path]) -> None:
    await DirectoryOutputs(tmp_path).put(b"value", RUN_LEASE)
    synced.clear()
    outputs = DirectoryOutputs(tmp_path)
    ref = await outputs.put(b"value", RUN_LEASE)
    folder = (tmp_path / ref.key).parent
    above = [tmp_path.parent, tmp_path, folder.parent]
    assert synced == [*above, folder], "another process may not have come as far"
    synced.clear()
    await outputs.put(b"value", RUN_LEASE)
    assert synced == [folder], "this one has"


async def test_a_store_that_is_made_anew_is_made_durable_anew(tmp_path: Path, synced: list[Path]) -> None:
    directory = tmp_path / "outputs"
    outputs = DirectoryOutputs(directory)
    for _ in range(2):
        synced.clear()
        ref = await outputs.put(b"value", RUN_LEASE)
        folder = (directory / ref.key).parent
        assert synced[:2] == [tmp_path, directory]
        assert synced[-1] == folder
        shutil.rmtree(directory)


async def test_what_is_above_the_store_may_be_closed_to_a_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_anything = os.open
    directory = tmp_path / "outputs"

    def open_below(path: Path, flags: int, *more: int) -> int:
        if Path(path) == tmp_path:
            raise PermissionError(path)
        return open_anything(path, flags, *more)

    monkeypatch.setattr(os, "open", open_below)
    outputs = DirectoryOutputs(directory)
    ref = await outputs.put(b"value", RUN_LEASE)
    assert await outputs.get(ref) == b"value"


@pytest.mark.parametrize("key", ["ab" * 16 + "/2026-08-00/" + "0" * 64 + ".json", "../outside.json"])
async def test_an_output_that_is_not_there_is_missing(tmp_path: Path, key: str) -> None:
    with pytest.raises(OutputMissing):
        await DirectoryOutputs(tmp_path).get(StoredOutput(key, "0" * 64, 3, RUN_LEASE))


async def test_output_is_read_for_its_own_workspace_alone(tmp_path: Path) -> None:
    outputs = DirectoryOutputs(tmp_path)
    ref = await outputs.put(b"value", RUN_LEASE)
    assert await outputs.get(replace(ref, lease=RUN_LEASE._replace(run_id="another.1"))) == b"value"
    elsewhere = RUN_LEASE._replace(workspace="elsewhere")
    with pytest.raises(OutputMissing):
        await outputs.get(replace(ref, lease=elsewhere))
    other = await outputs.put(b"value", elsewhere)
    assert other.key != ref.key


@pytest.mark.parametrize("difference", [-5, -1, 1])
async def test_an_output_that_is_not_as_large_as_was_said_is_not_read(tmp_path: Path, difference: int) -> None:
    """Otherwise the limits for what a node reads would rest on the word of a stranger."""
    outputs = DirectoryOutputs(tmp_path)
    ref = await outputs.put(b"value", RUN_LEASE)
    with pytest.raises(OutputMissing, match="has 5 bytes"):
        await outputs.get(replace(ref, size_bytes=ref.size_bytes + difference))


PUTTING = """
import asyncio, sys
from pathlib import Path
from services.runner.core.job import RunLease
from services.runner.store.outputs import DirectoryOutputs
print(asyncio.run(DirectoryOutputs(Path(sys.argv[1])).put(b"value", RunLease(sys.argv[2], 2, "default"))).key)
"""


async def test_what_a_killed_writer_left_is_swept_at_the_next_start(tmp_path: Path) -> None:
    outputs = DirectoryOutputs(tmp_path)
    assert await outputs.sweep() == 0, "a store that is not there yet"
    writer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PUTTING, str(tmp_path), RUN_LEASE[0]),
        env={**os.environ, "WINDLASS_CRASH_AT": "blob.named.before"},
    )
    assert await writer.wait() == -signal.SIGKILL
    (left,) = files_in(tmp_path)
    assert left.read_bytes() == b"value"
    ref = await outputs.put(b"another", RUN_LEASE)
    assert await outputs.sweep() == 1
    assert files_in(tmp_path) == [tmp_path / ref.key]


@pytest.fixture
def stopped_writer(tmp_path: Path) -> Iterator[Path]:
    """The file of a writer that is at its fsync."""
    left = tmp_path / ".writing" / "a"
    left.parent.mkdir()
    with left.open("xb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield left


async def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path, stopped_writer: Path) -> None:
    assert await DirectoryOutputs(tmp_path).sweep() == 0
    assert files_in(tmp_path) == [stopped_writer]


async def test_a_writer_whose_file_is_swept_before_it_is_locked_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, outputs = fcntl.flock, DirectoryOutputs(tmp_path)

    def late_lock(file: object, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        assert asyncio.run(DirectoryOutputs(tmp_path).sweep()) == 1
        lock(file, how)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", late_lock)
    ref = await outputs.put(b"value", RUN_LEASE)
    assert await outputs.get(ref) == b"value"
