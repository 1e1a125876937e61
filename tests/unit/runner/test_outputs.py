"""Large outputs in a directory, whoever writes them."""

import asyncio
import os
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


async def test_an_output_that_is_there_is_made_durable_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await DirectoryOutputs(tmp_path).put(b"value")
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(Path(f"/proc/self/fd/{handle}").readlink()))
    ref = await DirectoryOutputs(tmp_path).put(b"value")
    assert synced == [(tmp_path / ref.key).parent, tmp_path, tmp_path.parent]


@pytest.mark.parametrize("key", ["ab/" + "0" * 64 + ".json", "../outside.json"])
async def test_an_output_that_is_not_there_is_missing(tmp_path: Path, key: str) -> None:
    with pytest.raises(OutputMissing):
        await DirectoryOutputs(tmp_path).get(OutputRef(key, "0" * 64, 3))
