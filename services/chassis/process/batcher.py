"""Group commit without a timer, and the flag that wakes a loop.

One flusher takes all items that have gathered during the last flush, and flushes them at once. So a single item does
not wait, and under load the batches grow by themselves. A full batcher makes its callers wait, and never drops an item.

A wake-up is a level, which is a flag that is read again, and not an edge. So a loop that is busy when the level is set
sees it in its next turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Level:
    """A flag that many set and one loop awaits."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, poll_seconds: float | None = None) -> bool:
        """True when it was set, False after `poll_seconds`. The level is lowered in both cases.

        Read the state that it announces after this call, so that a change during the reading sets it again.
        """
        if not self._is_set:
            if self._waiter is not None and not self._waiter.done():
                raise RuntimeError("a level has one waiter, and another task waits already")
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            # A timer that completes the future needs no cancellation and no second task, as wait_for would.
            poll = None if poll_seconds is None else loop.call_later(poll_seconds, _complete, waiter)
            try:
                await waiter
            finally:
                self._waiter = None
                if poll is not None:
                    poll.cancel()
        was_set, self._is_set = self._is_set, False
        return was_set


def _complete(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Batcher(Generic[Item, Result]):
    """`flush` returns one result per item, in order. A result that is an Exception fails that item alone."""

    def __init__(
        self,
        flush: Callable[[list[Item]], Awaitable[Sequence[Result | Exception]]],
        *,
        items_per_flush: int = 500,
        items_waiting: int = 10_000,
    ) -> None:
        self._flush = flush
        self._items_per_flush = items_per_flush
        self._gathered: asyncio.Queue[tuple[Item, asyncio.Future[Result]]] = asyncio.Queue(items_waiting)

    @property
    def waiting(self) -> int:
        return self._gathered.qsize()

    async def submit(self, item: Item) -> Result:
        """Wait for room, then for the result. An item is flushed even when its caller is cancelled."""
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        await self._gathered.put((item, answer))
        return await answer

    async def run(self) -> None:
        """Flush for ever. A failure of `flush` goes to the callers of its items, and the flusher goes on."""
        while True:
            batch = [await self._gathered.get()]
            while len(batch) < self._items_per_flush and not self._gathered.empty():
                batch.append(self._gathered.get_nowait())
            await self._flush_batch(batch)

    async def _flush_batch(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        results: Sequence[Result | Exception]
        try:
            results = await self._flush([item for item, _ in batch])
            if len(results) != len(batch):
                raise RuntimeError(f"a flush of {len(batch)} items answered {len(results)}")
        except Exception as failure:  # noqa: BLE001 - the callers get it
            results = [failure] * len(batch)
        except BaseException:
            for _, answer in batch:
                answer.cancel()
            raise
        for (_, answer), result in zip(batch, results, strict=True):
            if answer.done():  # its submitter has gone
                continue
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)
