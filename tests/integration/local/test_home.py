"""One stack per home, and files that only their owner reads."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from deploy.local.home import Home, HomeTaken
from tests.support.probe import some

HOLD = """
import sys
from pathlib import Path
from deploy.local.home import Home
Home(Path(sys.argv[1])).take()
print("taken", flush=True)
sys.stdin.read()
"""


async def test_second_owner_is_refused_and_told_the_first(tmp_path: Path) -> None:
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLD, str(tmp_path)), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert await some(holder.stdout).readline() == b"taken\n"
    home = Home(tmp_path)
    assert home.holder() == holder.pid
    with pytest.raises(HomeTaken, match=f"process {holder.pid}") as refused:
        home.take()
    assert refused.value.pid == holder.pid

    holder.kill()  # a killed owner leaves no lock behind
    await holder.wait()
    assert home.holder() is None
    home.take()
    assert home.holder() == os.getpid()


def test_secrets_are_for_their_owner_only(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.take()
    home.password("api")
    assert home.password_file("api").stat().st_mode & 0o777 == 0o600
    assert home.credentials.stat().st_mode & 0o777 == 0o700


def test_password_is_made_once(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.take()
    assert home.password("api") == Home(tmp_path).password("api") != home.password("dispatcher")
