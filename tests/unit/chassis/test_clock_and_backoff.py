"""Time that is handed in, and the waits between tries."""

import asyncio
from datetime import timedelta

import pytest

from services.chassis.process.backoff import Backoff
from services.chassis.process.clock import ManualClock, SystemClock


async def test_manual_clock_wakes_sleepers_in_the_order_of_their_times() -> None:
    clock, woken = ManualClock(), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (3, 1, 2)]
    await asyncio.sleep(0)
    assert clock.sleepers == 3
    clock.advance(2)
    await asyncio.gather(*tasks[1:])
    assert woken == [1, 2]
    clock.advance(1)
    await tasks[0]
    assert woken == [1, 2, 3]


async def test_manual_clock_forgets_a_cancelled_sleeper() -> None:
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep(1))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert clock.sleepers == 0
    clock.advance(5)


async def test_setting_the_wall_clock_wakes_nobody_and_moves_no_monotonic_time() -> None:
    clock = ManualClock()
    before, start = clock.monotonic(), clock.now()
    clock.shift_wall(-3600)
    assert clock.monotonic() == before
    assert clock.now() == start - timedelta(hours=1)
    assert clock.epoch_ns() == round(clock.now().timestamp() * 1e9)


def test_monotonic_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="does not go back"):
        ManualClock().advance(-1)


async def test_system_clock_is_aware_and_sleeps() -> None:
    clock = SystemClock()
    start = clock.monotonic()
    await clock.sleep(0.001)
    assert clock.monotonic() > start
    assert clock.now().utcoffset() == timedelta(0)
    assert abs(clock.epoch_ns() / 1e9 - clock.now().timestamp()) < 60


def test_backoff_grows_to_its_cap_and_starts_again() -> None:
    backoff = Backoff(first=1, factor=2, cap=4)
    waits = [backoff.next() for _ in range(50)]
    for wait, ceiling in zip(waits, [1, 2, 4] + [4] * 47, strict=True):
        assert ceiling * 0.1 <= wait <= ceiling
    backoff.reset()
    assert backoff.next() <= 1


@pytest.mark.parametrize("wrong", [{"first": 0}, {"factor": 0.5}, {"first": 3, "cap": 2}])
def test_backoff_refuses_senseless_numbers(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="backoff needs"):
        Backoff(**wrong)
