"""Turns that are shared while much goes on, and never waited for otherwise."""

import asyncio

from services.chassis.clock import ManualClock
from services.chassis.company import TURN_SECONDS, Pace
from tests.support.probe import until

CROWD = 50
QUICK_SECONDS = TURN_SECONDS / 4


async def turn(pace: Pace, clock: ManualClock, items: int, seconds: float = TURN_SECONDS / 2) -> None:
    await pace.begin()
    clock.advance(seconds)
    pace.carried(items)


async def paused(pace: Pace, clock: ManualClock, seconds: float) -> None:
    """The next turn waits until so long after the last one began, and no longer."""
    next_turn = asyncio.create_task(turn(pace, clock, CROWD, 0.0))
    await until(lambda: clock.sleepers, 2.0, "a pause")
    clock.advance(seconds * 0.9)
    await asyncio.sleep(0)
    assert not next_turn.done()
    clock.advance(seconds * 0.1 + 1e-9)
    await next_turn


async def used_to(pace: Pace, clock: ManualClock, items: int, seconds: float) -> None:
    """As after many such turns, the last of them just over."""
    for _ in range(40):
        clock.advance(TURN_SECONDS)
        await turn(pace, clock, items, seconds)


async def test_turns_of_one_item_follow_each_other_at_once() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    await used_to(pace, clock, 1, QUICK_SECONDS)
    began = clock.monotonic()
    for _ in range(20):
        await turn(pace, clock, 1, 0.0)
    assert clock.monotonic() == began


async def test_crowded_turns_begin_apart() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    await used_to(pace, clock, CROWD, TURN_SECONDS / 2)
    await paused(pace, clock, TURN_SECONDS / 2)


async def test_crowded_turns_rest_no_longer_than_they_worked() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    await used_to(pace, clock, CROWD, QUICK_SECONDS)
    await paused(pace, clock, QUICK_SECONDS)


async def test_turn_that_took_long_is_followed_at_once() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    await used_to(pace, clock, CROWD, TURN_SECONDS)
    began = clock.monotonic()
    await turn(pace, clock, CROWD, 0.0)
    assert clock.monotonic() == began


async def test_pauses_end_with_the_crowd() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    await used_to(pace, clock, CROWD, QUICK_SECONDS)
    await used_to(pace, clock, 1, QUICK_SECONDS)
    began = clock.monotonic()
    for _ in range(5):
        await turn(pace, clock, 1, 0.0)
    assert clock.monotonic() == began
