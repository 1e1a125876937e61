"""The commands of docs/security.md work as printed: they make an authority and four services, and call them."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from deploy.local.postgres import PostgresServer
from tests.support.postgres import free_port, reachable_directory

pytestmark = pytest.mark.long

TREE = Path(__file__).resolve().parents[2]
PAGE = TREE / "docs/security.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
SCRIPT_SECONDS = 100
# A reader would see whether the api is up. Here it is asked until it answers.
BEFORE = "set -eu; trap 'kill $(jobs -p); wait' EXIT\n"
UNTIL_UP = """
until windlass workflow list --key-file home/admin.key --address 127.0.0.1:7501 --authority-file authority.pem
do :; done
"""
AFTER = """
echo '{"name": "homely", "nodes": [{"id": "a", "module": "noop@1", "runnerLabels": {"at": "home"}}]}' > homely.json
windlass workflow apply homely.json --key-file home/admin.key
windlass start homely --wait --json --key-file home/admin.key
"""


@pytest_asyncio.fixture(loop_scope="session")
async def place() -> AsyncIterator[Path]:
    made = reachable_directory("windlass-page-")
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the page's certificates are made with openssl")
async def test_the_page_is_an_installation(place: Path) -> None:
    server = PostgresServer(place / "postgres", port=free_port(), log=place / "log", password_file=place / "password")
    await server.start()
    try:
        told = await asyncio.to_thread(run, place, server.url())
    finally:
        await server.stop()
    assert told.count("SUCCESS") == 2, told


def run(place: Path, database_url: str) -> str:
    """The output of the page's commands and of ours, on free ports."""
    blocks = BLOCK.findall(PAGE.read_text())
    served = next(number for number, block in enumerate(blocks) if "\nserve api" in block)
    blocks.insert(served + 1, UNTIL_UP)
    script = BEFORE + "\n".join(blocks) + AFTER
    for address in sorted(set(ADDRESS.findall(script))):
        script = script.replace(address, f"127.0.0.1:{free_port()}")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
    told_first = {
        "DATABASE_URL": database_url,
        "PATH": f"{TREE / '.venv/bin'}:{os.environ['PATH']}",
        # The page uses the usual ports, which other processes of this machine may have.
        "WINDLASS_METRICS_ADDRESS": "127.0.0.1:0",
    }
    with (place / "told").open("w") as told:
        process = subprocess.Popen(
            ["bash", "-c", script], cwd=place, env=clean | told_first, stdout=told, stderr=told, start_new_session=True
        )
        try:
            assert process.wait(SCRIPT_SECONDS) == 0, (place / "told").read_text()
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    return (place / "told").read_text()
