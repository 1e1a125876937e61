"""Turns that are shared while much goes on, and never waited for otherwise."""

import asyncio

from services.chassis.process.clock import ManualClock
from services.chassis.process.coalescing import TURN_SECONDS, AdaptivePacer
from tests.support.probe import until

CROWD = 50
QUICK_SECONDS = TURN_SECONDS / 4


async def turn(
    pacer: AdaptivePacer, clock: ManualClock, items: int, seconds: float = TURN_SECONDS / 2
) -> None:
    await pacer.begin()
    clock.advance(seconds)
    pacer.carried(items)


async def paused(pacer: AdaptivePacer, clock: ManualClock, seconds: float) -> None:
    """The next turn waits until so long after the last one began, and no longer."""
    next_turn = asyncio.create_task(turn(pacer, clock, CROWD, 0.0))
    await until(lambda: clock.sleepers, 2.0, "a pause")
    clock.advance(seconds * 0.9)
    await asyncio.sleep(0)
    assert not next_turn.done()
    clock.advance(seconds * 0.1 + 1e-9)
    await next_turn


async def used_to(pacer: AdaptivePacer, clock: ManualClock, items: int, seconds: float) -> None:
    """As after many such turns, the last of them just over."""
    for _ in range(40):
        clock.advance(TURN_SECONDS)
        await turn(pacer, clock, items, seconds)


async def test_turns_of_one_item_follow_each_other_at_once() -> None:
    clock = ManualClock()
    pacer = AdaptivePacer(clock)
    await used_to(pacer, clock, 1, QUICK_SECONDS)
    began = clock.monotonic()
    for _ in range(20):
        await turn(pacer, clock, 1, 0.0)
    assert clock.monotonic() == began


async def test_crowded_turns_begin_apart() -> None:
    clock = ManualClock()
    pacer = AdaptivePacer(clock)
    await used_to(pacer, clock, CROWD, TURN_SECONDS / 2)
    await paused(pacer, clock, TURN_SECONDS / 2)


async def test_crowded_turns_rest_no_longer_than_they_worked() -> None:
    clock = ManualClock()
    pacer = AdaptivePacer(clock)
    await used_to(pacer, clock, CROWD, QUICK_SECONDS)
    await paused(pacer, clock, QUICK_SECONDS)


async def test_turn_that_took_long_is_followed_at_once() -> None:
    clock = ManualClock()
    pacer = AdaptivePacer(clock)
    await used_to(pacer, clock, CROWD, TURN_SECONDS)
    began = clock.monotonic()
    await turn(pacer, clock, CROWD, 0.0)
    assert clock.monotonic() == began


async def test_pauses_end_with_the_crowd() -> None:
    clock = ManualClock()
    pacer = AdaptivePacer(clock)
    await used_to(pacer, clock, CROWD, QUICK_SECONDS)
    await used_to(pacer, clock, 1, QUICK_SECONDS)
    began = clock.monotonic()
    for _ in range(5):
        await turn(pacer, clock, 1, 0.0)
    assert clock.monotonic() == began
