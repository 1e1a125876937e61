"""A batcher commits groups without a timer and has limits, and a wake-up is a level."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from services.chassis.process.batcher import Batcher, Level


@asynccontextmanager
async def running(batcher: Batcher[int, int]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(batcher.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Flush:
    """Records its batches, and waits at a gate while that is shut."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, items: list[int]) -> Sequence[int | Exception]:
        self.batches.append(items)
        await self.gate.wait()
        return [ValueError(f"bad {item}") if item < 0 else item * 10 for item in items]


async def spun(turns: int = 5) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def test_items_that_gather_during_a_flush_go_into_the_next_one() -> None:
    flush = Flush()
    flush.gate.clear()
    async with running(batcher := Batcher(flush)):
        first = asyncio.create_task(batcher.submit(1))
        await spun()
        rest = [asyncio.create_task(batcher.submit(n)) for n in (2, 3, 4)]
        await spun()
        assert flush.batches == [[1]]
        flush.gate.set()
        assert await asyncio.gather(first, *rest) == [10, 20, 30, 40]
        assert flush.batches == [[1], [2, 3, 4]]


async def test_one_bad_item_fails_alone() -> None:
    async with running(batcher := Batcher(Flush())):
        answers = await asyncio.gather(*(batcher.submit(n) for n in (1, -2, 3)), return_exceptions=True)
    assert answers[0] == 10
    assert answers[2] == 30
    assert isinstance(answers[1], ValueError)


async def test_a_failed_flush_fails_its_items_and_the_flusher_goes_on() -> None:
    calls = 0

    async def flush(items: list[int]) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ConnectionError("away")
        return items

    async with running(batcher := Batcher(flush)):
        with pytest.raises(ConnectionError):
            await batcher.submit(1)
        assert await batcher.submit(2) == 2


async def test_an_answer_of_the_wrong_length_is_a_failure_not_a_mix_up() -> None:
    async def flush(items: list[int]) -> list[int]:
        return items[:-1]

    async with running(batcher := Batcher(flush)):
        with pytest.raises(RuntimeError, match="answered 0"):
            await batcher.submit(1)


async def test_a_flush_takes_no_more_than_its_bound() -> None:
    flush = Flush()
    flush.gate.clear()
    async with running(batcher := Batcher(flush, items_per_flush=2)):
        tasks = [asyncio.create_task(batcher.submit(n)) for n in range(5)]
        await spun()
        flush.gate.set()
        await asyncio.gather(*tasks)
    assert [len(batch) for batch in flush.batches] == [2, 2, 1]


async def test_a_full_batcher_makes_its_callers_wait_and_drops_nothing() -> None:
    flush = Flush()
    batcher: Batcher[int, int] = Batcher(flush, items_per_flush=2, items_waiting=3)
    tasks = [asyncio.create_task(batcher.submit(n)) for n in range(20)]
    await spun()
    assert batcher.waiting == 3
    async with running(batcher):
        assert await asyncio.gather(*tasks) == [n * 10 for n in range(20)]
    assert batcher.waiting == 0


async def test_giving_up_on_the_answer_leaves_the_item_to_be_flushed() -> None:
    flush = Flush()
    flush.gate.clear()
    async with running(batcher := Batcher(flush)):
        gone = asyncio.create_task(batcher.submit(1))
        await spun()
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        flush.gate.set()
        assert await batcher.submit(2) == 20
    assert flush.batches == [[1], [2]]


async def test_the_end_of_the_flusher_cancels_those_who_wait_for_its_flush() -> None:
    flush = Flush()
    flush.gate.clear()
    async with running(batcher := Batcher(flush)):
        waiting = asyncio.create_task(batcher.submit(1))
        await spun()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()


async def test_a_level_set_while_nobody_waits_is_seen_at_the_next_wait() -> None:
    level = Level()
    level.set()
    level.set()
    assert level.is_set
    assert await level.wait(60) is True
    assert level.is_set is False


async def test_a_level_wakes_its_waiter_and_a_poll_stands_behind_it() -> None:
    level = Level()
    waiting = asyncio.create_task(level.wait())
    await spun()
    with pytest.raises(RuntimeError, match="one waiter"):
        await level.wait()
    level.set()
    assert await waiting is True
    assert await level.wait(0.001) is False


async def test_a_cancelled_wait_loses_no_level() -> None:
    level = Level()
    waiting = asyncio.create_task(level.wait())
    await spun()
    level.set()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await level.wait(60) is True
