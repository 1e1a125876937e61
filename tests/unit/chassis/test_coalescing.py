"""A batch waits for more items while many come, and never otherwise."""

import asyncio

import pytest

from services.chassis.process.coalescing import APART_SECONDS_MAX, AdaptivePacer
from tests.support.manual_clock import ManualClock
from tests.support.probe import until

CROWD = 50
QUICK_SECONDS = APART_SECONDS_MAX / 4
LONG_SECONDS = APART_SECONDS_MAX


async def batch(pacer: AdaptivePacer, clock: ManualClock, items: int, seconds: float = APART_SECONDS_MAX / 2) -> None:
    await pacer.begin()
    clock.advance(seconds)
    pacer.carried(items)


async def paused(pacer: AdaptivePacer, clock: ManualClock, seconds: float) -> None:
    """The next batch begins this long after the last one began."""
    next_batch = asyncio.create_task(batch(pacer, clock, CROWD, 0.0))
    await until(lambda: clock.sleepers, 2.0, "a pause")
    clock.advance(seconds * 0.9)
    await asyncio.sleep(0)
    assert not next_batch.done()
    clock.advance(seconds * 0.1 + 1e-9)
    await next_batch


async def used_to(pacer: AdaptivePacer, clock: ManualClock, items: int, seconds: float) -> None:
    """Take many such batches, of which the last is just over."""
    for _ in range(40):
        clock.advance(APART_SECONDS_MAX)
        await batch(pacer, clock, items, seconds)


@pytest.mark.parametrize("worked", [APART_SECONDS_MAX / 2, QUICK_SECONDS])
async def test_crowded_batches_begin_apart_and_rest_no_longer_than_they_worked(worked: float) -> None:
    clock = ManualClock()
    pacer = AdaptivePacer(clock)
    await used_to(pacer, clock, CROWD, worked)
    await paused(pacer, clock, worked)


@pytest.mark.parametrize(
    ("used", "items"),
    [
        ([(1, QUICK_SECONDS)], 1),
        ([(CROWD, APART_SECONDS_MAX)], CROWD),
        ([(CROWD, QUICK_SECONDS), (1, QUICK_SECONDS)], 1),
    ],
    ids=["batches of one item", "batches that take long", "after a crowd"],
)
async def test_batches_follow_each_other_at_once(used: list[tuple[int, float]], items: int) -> None:
    clock = ManualClock()
    pacer = AdaptivePacer(clock)
    for each in used:
        await used_to(pacer, clock, *each)
    began = clock.monotonic()
    for _ in range(1 if items == CROWD else 20):
        await batch(pacer, clock, items, 0.0)
    assert clock.monotonic() == began
