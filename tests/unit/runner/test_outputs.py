"""Large outputs in a directory, whoever writes them."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from services.runner.core.job import OutputMissing, OutputRef
from services.runner.store.outputs import DirectoryOutputs


def files_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


async def test_equal_outputs_are_kept_at_once(tmp_path: Path) -> None:
    outputs = DirectoryOutputs(tmp_path)
    for number in range(10):
        value = b"%d" % number + b"x" * 1_000_000
        refs = await asyncio.gather(*(outputs.put(value) for _ in range(4)))
        assert len(set(refs)) == 1
        assert await outputs.get(refs[0]) == value
    assert len(files_in(tmp_path)) == 10


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was fsynced, in its order."""
    found: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda handle: found.append(Path(f"/proc/self/fd/{handle}").readlink()))
    return found


async def test_an_output_that_is_there_is_made_durable_all_the_same(
    tmp_path: Path, synced: list[Path]
) -> None:
    await DirectoryOutputs(tmp_path).put(b"value")
    synced.clear()
    outputs = DirectoryOutputs(tmp_path)
    ref = await outputs.put(b"value")
    folder = (tmp_path / ref.key).parent
    assert synced == [tmp_path.parent, tmp_path, folder], "another process may not have come as far"
    synced.clear()
    await outputs.put(b"value")
    assert synced == [folder], "this one has"


async def test_a_store_that_is_made_anew_is_made_durable_anew(tmp_path: Path, synced: list[Path]) -> None:
    directory = tmp_path / "outputs"
    outputs = DirectoryOutputs(directory)
    for _ in range(2):
        synced.clear()
        ref = await outputs.put(b"value")
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
    ref = await outputs.put(b"value")
    assert await outputs.get(ref) == b"value"


@pytest.mark.parametrize("key", ["ab/" + "0" * 64 + ".json", "../outside.json"])
async def test_an_output_that_is_not_there_is_missing(tmp_path: Path, key: str) -> None:
    with pytest.raises(OutputMissing):
        await DirectoryOutputs(tmp_path).get(OutputRef(key, "0" * 64, 3))
