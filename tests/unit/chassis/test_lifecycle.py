"""The ways in which a process ends. Ends by a signal are tested on real processes."""

import asyncio
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from services.chassis.process.lifecycle import Process
from tests.support.probe import some


async def forever() -> None:
    await asyncio.Event().wait()


def recorder(events: list[str], name: str) -> Callable[[], Awaitable[None]]:
    async def hook() -> None:
        events.append(name)

    return hook


async def test_a_stopped_process_drains_in_order_and_closes_in_reverse() -> None:
    process, events = Process("shop"), list[str]()

    async def wire(wired: Process) -> None:
        wired.loop("till", forever)
        for name in ("first", "second"):
            wired.on_drain(name, recorder(events, f"drain {name}"))
            wired.on_close(name, recorder(events, f"close {name}"))
        wired.stop()

    assert await process.run(wire) == 0
    assert events == ["drain first", "drain second", "close second", "close first"]


async def test_a_loop_that_raises_takes_the_process_with_it() -> None:
    process, events = Process("shop"), list[str]()

    async def dies() -> None:
        raise RuntimeError("broken till")

    async def wire(wired: Process) -> None:
        wired.loop("door", forever)
        wired.loop("till", dies)
        wired.on_drain("late", recorder(events, "drain"))
        wired.on_close("late", recorder(events, "close"))

    assert await process.run(wire) == 1
    assert events == ["close"]


async def returns() -> None: ...


async def waits_for_what_is_cancelled() -> None:
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    answer.cancel()
    await answer


@pytest.mark.parametrize("till", [returns, waits_for_what_is_cancelled])
async def test_a_loop_that_returns_or_whose_wait_others_cancel_is_dead_too(till: Callable[[], Awaitable[None]]) -> None:
    async def wire(wired: Process) -> None:
        wired.loop("door", forever)
        wired.loop("till", till)

    async with asyncio.timeout(10):
        assert await Process("shop").run(wire) == 1


async def test_a_loop_whose_wait_is_cancelled_while_draining_has_ended_in_order() -> None:
    process, has_ended = Process("shop"), asyncio.Event()

    async def waits_for_what_is_cancelled() -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await process.draining.wait()
        answer.cancel()
        has_ended.set()
        await answer

    async def drained() -> None:
        await has_ended.wait()
        await asyncio.sleep(0)

    async def wire(wired: Process) -> None:
        wired.loop("till", waits_for_what_is_cancelled)
        wired.on_drain("till", drained)
        wired.stop()

    assert await process.run(wire) == 0


async def test_loops_may_end_while_draining_and_be_added_while_running() -> None:
    process = Process("shop")
    started = asyncio.Event()

    async def till() -> None:
        started.set()
        await process.draining.wait()

    async def opener() -> None:
        process.loop("till", till)
        await started.wait()
        process.stop()
        await forever()

    async def wire(wired: Process) -> None:
        wired.loop("opener", opener)

    assert await process.run(wire) == 0


async def test_wiring_that_fails_ends_it_and_closes_what_was_opened() -> None:
    events = list[str]()

    async def wire(wired: Process) -> None:
        wired.on_close("door", recorder(events, "close"))
        raise ValueError("no such port")

    assert await Process("shop").run(wire) == 1
    assert events == ["close"]


async def test_a_stop_during_a_long_wiring_is_heard() -> None:
    process = Process("shop")

    async def wire(wired: Process) -> None:
        wired.stop()
        await forever()

    assert await process.run(wire) == 0


async def test_draining_ends_when_its_time_is_over() -> None:
    process, events = Process("shop", drain_seconds=0.01), list[str]()

    async def wire(wired: Process) -> None:
        wired.on_drain("slow", forever)
        wired.on_drain("never", recorder(events, "never"))
        wired.on_close("door", recorder(events, "close"))
        wired.stop()

    assert await process.run(wire) == 0
    assert events == ["close"]


async def test_a_hook_that_fails_does_not_keep_the_others_from_their_turn() -> None:
    events = list[str]()

    async def fails() -> None:
        raise RuntimeError("jammed")

    async def wire(wired: Process) -> None:
        wired.on_drain("bad", fails)
        wired.on_drain("good", recorder(events, "drained"))
        wired.stop()

    assert await Process("shop").run(wire) == 0
    assert events == ["drained"]


PROGRAM = """
import asyncio, sys
from services.chassis.process.lifecycle import Process
from services.chassis.telemetry.logs import setup_logging

async def till():
    print("open", flush=True)
    await asyncio.Event().wait()


async def sweep():
    print("draining", flush=True)
    if "hang" in sys.argv:
        await asyncio.Event().wait()

async def wire(process):
    process.loop("till", till)
    process.on_drain("sweep", sweep)

setup_logging(service="shop")
sys.exit(Process("shop", drain_seconds=60).main(wire))
"""


@contextmanager
def started(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert some(process.stdout).readline() == "open\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_ends_with_zero(number: signal.Signals) -> None:
    with started() as process:
        process.send_signal(number)
        assert process.wait() == 0
        assert some(process.stdout).read() == "draining\n"


def test_a_second_signal_ends_at_once() -> None:
    with started("hang") as process:
        process.send_signal(signal.SIGTERM)
        assert some(process.stdout).readline() == "draining\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM
