"""Logs that begin again when they have grown large."""

import shutil
from pathlib import Path

import pytest

from deploy.local.logs import rotate


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
