"""Requests that do not arrive end one after the other, so that nobody who calls meanwhile waits for all of them."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from services.chassis.grpc.receiving import Receiving

COUNT = 20


class SilentCall:
    """A call whose request never arrives. It notes in which turn of the loop it is ended."""

    def __init__(self, turns: list[int]) -> None:
        self._turns = turns
        self._ended = asyncio.Event()
        self.ended_in = -1

    async def read(self) -> Any:
        await self._ended.wait()
        raise grpc.aio.AbortError

    async def abort(self, *_: Any) -> None:
        self.ended_in = len(self._turns)
        self._ended.set()
        raise grpc.aio.AbortError


async def test_only_one_slow_request_is_ended_in_each_turn_of_the_loop() -> None:
    receiving = Receiving(slow_seconds=0.01, seconds_max=0.05, places=8 * COUNT)
    turns: list[int] = []
    calls = [SilentCall(turns) for _ in range(COUNT)]
    reads = asyncio.gather(
        *(receiving.read(call, "/shop/Buy", f"owner {number}") for number, call in enumerate(calls)),
        return_exceptions=True,
    )
    while not reads.done():
        await asyncio.sleep(0)
        turns.append(0)
    assert len({call.ended_in for call in calls}) == COUNT
