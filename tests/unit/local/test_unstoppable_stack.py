"""A test whose stack does not stop by itself in the promised time fails, and is told what the stack said."""

import asyncio
import sys
from pathlib import Path

import pytest

from deploy.local.plan import Options
from tests.support import stack as support
from tests.support.probe import some
from tests.support.stack import Stack, is_alive

WAITS = "print('waits', flush=True); import signal; signal.pause()"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS


async def stack_of(place: Path, program: str) -> Stack:
    output = place / "up.log"
    output.write_text("what it said")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    assert await some(process.stdout).readline() == b"waits\n"
    return Stack(Options(home=place), process, output, None, seen={process.pid})


async def test_stack_that_must_be_killed_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "STOP_SECONDS", 0.01)
    stack = await stack_of(tmp_path, DEAF)
    assert await stack.close() == ["windlass up did not stop within 0.01 s:\nwhat it said"]
    assert not is_alive(stack.process.pid)


async def test_stack_that_stops_is_none(tmp_path: Path) -> None:
    stack = await stack_of(tmp_path, WAITS)
    assert await stack.close() == []
