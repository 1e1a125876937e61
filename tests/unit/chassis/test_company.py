"""Turns that are shared while much goes on, and never waited for otherwise."""

import asyncio

from services.chassis.clock import ManualClock
from services.chassis.company import TURN_SECONDS, Pace
from tests.support.probe import until

CROWD = 50


async def turn(pace: Pace, items: int) -> None:
    await pace.begin()
    pace.carried(items)


async def test_turns_of_one_item_follow_each_other_at_once() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    for _ in range(20):
        await turn(pace, 1)
    assert clock.monotonic() == 0


async def test_crowded_turns_begin_apart() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    await turn(pace, CROWD)
    for _ in range(3):
        next_turn = asyncio.create_task(turn(pace, CROWD))
        await until(lambda: clock.sleepers, 2.0, "a pause")
        clock.advance(TURN_SECONDS)
        await next_turn


async def test_turn_that_took_long_is_followed_at_once() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    await turn(pace, CROWD)
    clock.advance(TURN_SECONDS)
    await turn(pace, CROWD)


async def test_pauses_end_with_the_crowd() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    await turn(pace, CROWD)
    for _ in range(40):
        clock.advance(TURN_SECONDS)
        await turn(pace, 1)
    began = clock.monotonic()
    for _ in range(5):
        await turn(pace, 1)
    assert clock.monotonic() == began
