"""A key reaches the api for which it is meant, and no other address."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from deploy.local.home import Home
from tests.support.command_line import running_home, windlass

KILLED_STACK = """
import os, pathlib, signal, sys
from tests.support.command_line import running_home
running_home(pathlib.Path(sys.argv[1]), sys.argv[2])
os.kill(os.getpid(), signal.SIGKILL)
"""


class Stranger(grpc.GenericRpcHandler):
    """A server that keeps the credentials of every call, and serves none."""

    def __init__(self) -> None:
        self.address = ""
        self.brought: list[str] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> None:
        metadata = {name: str(value) for name, value in handler_call_details.invocation_metadata}
        self.brought.append(metadata.get("authorization", ""))


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    found = Stranger()
    server = grpc.server(ThreadPoolExecutor(1), handlers=[found])
    found.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield found
    server.stop(grace=None).wait()


def home_of(folder: Path, *apis: str) -> Path:
    with_keys(folder)
    return running_home(folder, *apis)


def with_keys(folder: Path) -> None:
    for name in ("admin", "system"):
        (folder / f"{name}.key").write_text(f"{name}-secret\n")


@pytest.mark.parametrize("verb", [("list",), ("watch", "x"), ("export", "x"), ("workspace", "list")])
def test_the_keys_of_a_home_are_not_sent_to_another_address(
    verb: tuple[str, ...], stranger: Stranger, tmp_path: Path
) -> None:
    refused = windlass(*verb, "--home", home_of(tmp_path, "127.0.0.1:1"), "--address", stranger.address)
    assert (refused.returncode, stranger.brought) == (2, [])
    assert (
        f"no key is given for {stranger.address}; name its file with --key-file, or set WINDLASS_KEY" in refused.stderr
    )
    assert "secret" not in refused.stderr


def test_without_a_stack_a_home_has_no_address_for_its_keys(stranger: Stranger, tmp_path: Path) -> None:
    (home_of(tmp_path) / "up.json").unlink()
    refused = windlass("list", "--home", tmp_path, "--address", stranger.address)
    assert (refused.returncode, stranger.brought) == (2, [])


@pytest.mark.parametrize("is_next_starting", [False, True])
def test_the_address_that_a_killed_stack_leaves_behind_gets_no_key(
    is_next_starting: bool, stranger: Stranger, tmp_path: Path
) -> None:
    """Its port may belong to anybody by now, also while the next stack has only just taken the home."""
    with_keys(tmp_path)
    killed = subprocess.run([sys.executable, "-c", KILLED_STACK, tmp_path, stranger.address], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    home = Home(tmp_path)
    left = home.up_file.read_text()
    if is_next_starting:
        home.take()
        home.up_file.write_text(left)
    named = windlass("list", "--home", tmp_path, "--address", stranger.address)
    found = windlass("list", "--home", tmp_path)
    assert (named.returncode, found.returncode, stranger.brought) == (2, 1, [])
    assert found.stderr.startswith(f"no stack runs in {tmp_path}; start one with: ")


@pytest.mark.parametrize("is_named", [False, True])
def test_the_key_of_a_home_goes_through_no_proxy(is_named: bool, stranger: Stranger, tmp_path: Path) -> None:
    """No proxy answers at this address, so a call that goes there does not arrive."""
    named = ("--address", stranger.address) if is_named else ()
    proxy = dict.fromkeys(("grpc_proxy", "https_proxy", "http_proxy"), "http://127.0.0.1:1")
    direct = dict.fromkeys(("no_grpc_proxy", "no_proxy"), "")
    windlass("list", "--home", home_of(tmp_path, stranger.address), *named, **proxy, **direct)
    assert stranger.brought == ["Bearer admin-secret"]


def test_each_api_of_the_home_gets_its_key(stranger: Stranger, tmp_path: Path) -> None:
    home = home_of(tmp_path, "127.0.0.1:1", stranger.address)
    windlass("list", "--home", home, "--address", stranger.address)
    windlass("workspace", "list", "--home", home, "--address", stranger.address)
    assert stranger.brought == ["Bearer admin-secret", "Bearer system-secret"]


def test_a_key_that_is_given_goes_to_the_address_that_is_given(stranger: Stranger, tmp_path: Path) -> None:
    given = tmp_path / "given.key"
    given.write_text("of-a-file\n")
    windlass("list", "--address", stranger.address, "--key-file", given)
    windlass("list", "--address", stranger.address, WINDLASS_KEY="of-the-environment\n")
    assert stranger.brought == ["Bearer of-a-file", "Bearer of-the-environment"]


@pytest.mark.parametrize("content", [b"", b"two words", b"two\nlines", b"\xff\xfe", "schlüssel".encode()])
def test_a_file_that_has_no_key_is_named(content: bytes, stranger: Stranger, tmp_path: Path) -> None:
    file = tmp_path / "not.key"
    file.write_bytes(content)
    refused = windlass("list", "--address", stranger.address, "--key-file", file)
    assert (refused.returncode, stranger.brought) == (1, [])
    assert refused.stderr == f"{file} has no key; a key is one line of letters, digits and signs\n"
