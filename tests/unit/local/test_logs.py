"""Logs that begin again when they have grown large."""

import asyncio
import shutil
from pathlib import Path

import pytest

from deploy.local import logs
from deploy.local.logs import keep_bounded, rotate
from tests.support.probe import until


def test_log_within_its_bound_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "api-0.log"
    log.write_bytes(b"x" * 100)
    rotate(log, 100)
    assert log.stat().st_size == 100
    assert [*tmp_path.iterdir()] == [log]


def test_process_goes_on_at_the_beginning_of_its_log_and_the_end_of_the_old_one_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "api-0.log"
    with log.open("ab", buffering=0) as process:
        for round_ in (b"a", b"b"):
            process.write(b"-" + round_ * 100)
            rotate(log, 100)
            assert log.with_name("api-0.log.1").read_bytes() == round_ * 100, "there is one copy, the newest"
            process.write(b"next")
            assert log.read_bytes() == b"next"


def test_log_begins_again_also_when_its_copy_finds_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    log = tmp_path / "api-0.log"
    log.write_bytes(b"x" * 101)
    rotate(log, 100)
    assert log.stat().st_size == 0
    assert [*tmp_path.iterdir()] == [log]


async def test_a_log_that_cannot_be_emptied_does_not_leave_the_others_unbounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LOG_BYTES_MAX", 100)
    monkeypatch.setattr(logs, "CHECK_SECONDS", 0.0)
    # It is larger than the bound, and can be neither copied nor emptied.
    (tmp_path / "a.log").mkdir()
    log = tmp_path / "b.log"
    keeper = asyncio.create_task(keep_bounded(tmp_path))
    for _ in range(2):
        log.write_bytes(b"x" * 101)
        await until(lambda: log.stat().st_size == 0, 10.0, "the log to begin again")
    keeper.cancel()
    await asyncio.gather(keeper, return_exceptions=True)
