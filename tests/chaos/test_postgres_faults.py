"""PostgreSQL dies or stands still under load. Everything acknowledged is still there, and nothing is done again."""

import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from tests.chaos.history import done_again
from tests.chaos.load import under_load
from tests.chaos.verify import verify_history
from tests.support.pace import pause
from tests.support.stack import Stack, running_stack

MODULES = Path(__file__).with_name("ledger_modules.py")
# Two terms of a run's lease at a tenth, and some more.
STOPPED_SECONDS = 4.0


@contextlib.asynccontextmanager
async def loaded_stack(ledger: Path, lease_scale: float = 0.1) -> AsyncIterator[Stack]:
    """Mixed graphs go on inside the block. After it, everything is as if nothing had happened."""
    async with running_stack(
        dispatchers=2, coordinators=2, runners=2, modules=[MODULES], lease_scale=lease_scale
    ) as stack:
        processes = _pids(stack)
        async with under_load(stack, ledger, 17) as load:
            await pause(1.0)
            yield stack
            await pause(1.0)
        history = await load.history()
        assert not done_again(history)
        assert _pids(stack) == processes, "an outage ended a process"
        await verify_history(stack, load, history)


@pytest.mark.chaos
@pytest.mark.timeout(150)
async def test_standing_still_for_two_terms_and_killed_twice_nothing_is_lost_and_no_lease_ends(ledger: Path) -> None:
    async with loaded_stack(ledger) as stack:
        with _standing_still(stack):
            await pause(STOPPED_SECONDS)
        await pause(3.0)
        for _ in range(2):
            pid = stack.kill_postgres()
            await stack.postgres_again(pid)
            await pause(3.0)


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(240)
async def test_standing_still_for_twenty_seconds_ends_no_lease_at_full_scale(ledger: Path) -> None:
    async with loaded_stack(ledger, lease_scale=1.0) as stack:
        with _standing_still(stack):
            await pause(20.0)
        await pause(20.0)


def _pids(stack: Stack) -> set[int]:
    return {each["pid"] for each in stack.up()["processes"]}


@contextlib.contextmanager
def _standing_still(stack: Stack) -> Iterator[None]:
    """Neither the server nor any of its backends does anything; connections stay open."""
    server = psutil.Process(stack.up()["postgres"]["pid"])
    stopped: list[psutil.Process] = []
    try:
        # The server is stopped first, so that it makes no further backend.
        server.send_signal(signal.SIGSTOP)
        stopped.append(server)
        for backend in server.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                backend.send_signal(signal.SIGSTOP)
                stopped.append(backend)
        yield
    finally:
        for process in reversed(stopped):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
