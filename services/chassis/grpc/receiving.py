"""Bounds the requests that are being received, and the time that each may take.

gRPC does not tell how much of a request has arrived, so each that is being read counts with all that it may have
(limits.py). It takes one of few places before it is read, or waits for one in turn, while gRPC holds little of it.
Nearly every request has arrived by then, and gives the place back at once. One that has not after a moment is slow. It
moves to one of few other places, so that slow requests keep nobody waiting. A request that finds no such place, or that
takes too long, ends its call with a refusal. The owner of a place is the workspace of the key, or the address of a
caller without one (shares.py says how owners share them).

So memory is bounded by the number of places. How fast this machine is decides only who is refused.

Hazard: a pending read is never cancelled. Its call is ended, and then the read ends by itself: it raises AbortError.
Until then it keeps its place.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.rpc.status_pb2 import Status

from services.chassis.grpc.aborting import abort
from services.chassis.grpc.errors import Refusal, status_of
from services.chassis.grpc.shares import Shares
from services.chassis.grpc.turns import Turns

# A request is looked at so many times before it is slow.
_LOOKS: Final = 4
# A server that takes very large messages has few places. One owner alone gets two of these.
_NEW_MIN: Final = 4
# Waits for a place that one sweep ends, so that thousands do not end in one turn of the loop.
_LATE_AT_ONCE: Final = 20


@dataclass(slots=True)
class _Read:
    method: str
    owner: str
    # When its call came, which may have waited for a place since then; and when it got its place.
    came: float
    since: float
    # The places among which it has its own.
    places: Shares


def _no_place() -> Refusal:
    message = "the request did not arrive at once, and too many others are arriving slowly"
    return Refusal("SLOW_REQUESTS_EXCEEDED", message, retry_after=1.0)


class Receiving:
    """The requests of one kind of callers. One that has not arrived after `slow_seconds` is slow."""

    def __init__(self, *, slow_seconds: float, seconds_max: float, places: int) -> None:
        self._slow_seconds = slow_seconds
        self._seconds_max = seconds_max
        self._new_places = Turns(max(_NEW_MIN, (places + 1) // 2))
        self._slow_places = Shares(max(1, places // 2))
        # In the order in which the reads began.
        self._new: dict[Any, _Read] = {}
        self._slow: dict[Any, _Read] = {}
        self._sweep_time = 0.0
        self._is_sweeping = False
        self._was_late = False
        # Refused, and still pending until their calls have been ended.
        self._refused: set[Any] = set()
        # Those of them whose end has not begun.
        self._doomed: deque[tuple[Any, _Read, Refusal]] = deque()
        self._is_ending = False
        self._endings: set[asyncio.Task[None]] = set()

    async def read(self, context: Any, method: str, owner: str) -> Any:
        """The next message of the call, or EOF."""
        loop = asyncio.get_running_loop()
        came = loop.time()
        if not self._new_places.take(owner):
            self._begin_sweeping(loop)
            if not await self._new_places.wait(owner):
                raise _no_place()
        read = self._new[context] = _Read(method, owner, came, loop.time(), self._new_places)
        self._begin_sweeping(loop)
        try:
            return await context.read()
        finally:
            if self._new.pop(context, None) is None:
                self._slow.pop(context, None)
                self._refused.discard(context)
            read.places.give_back(owner)

    def _begin_sweeping(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_sweeping:
            self._is_sweeping = True
            self._sweep_later(loop)

    def _sweep_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep_time = loop.time() + self._slow_seconds / _LOOKS
        loop.call_at(self._sweep_time, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        # A sweep that comes late shows that this process was slow. What has arrived meanwhile is read before the next.
        self._was_late = not self._was_late and now - self._sweep_time > self._slow_seconds / _LOOKS
        if not self._was_late:
            self._find_places(now)
            self._end_late(now)
            self._new_places.end_late(now - self._seconds_max, most=_LATE_AT_ONCE)
        self._is_sweeping = bool(self._new or self._slow or self._new_places.is_waited_for)
        if self._is_sweeping:
            self._sweep_later(loop)

    def _find_places(self, now: float) -> None:
        """Give each request that has become slow a place, or end its call."""
        while self._new:
            context, read = next(iter(self._new.items()))
            # While others wait for its place, it gets less time.
            slow_seconds = self._slow_seconds / (_LOOKS if self._new_places.is_waited_for else 1)
            if now - read.since < slow_seconds:
                return
            del self._new[context]
            if self._slow_places.take(read.owner):
                read.places.give_back(read.owner)
                read.places = self._slow_places
                self._slow[context] = read
            else:
                self._end(context, read, _no_place())

    def _end_late(self, now: float) -> None:
        for context, read in [each for each in self._slow.items() if now - each[1].came >= self._seconds_max]:
            del self._slow[context]
            message = f"the request did not arrive within {self._seconds_max:g} s"
            self._end(context, read, Refusal("DEADLINE_PASSED", message))

    def _end(self, context: Any, read: _Read, refusal: Refusal) -> None:
        self._refused.add(context)
        self._doomed.append((context, read, refusal))
        if not self._is_ending:
            self._is_ending = True
            self._keep(self._end_doomed())

    async def _end_doomed(self) -> None:
        """Begin one end in each turn of the loop. An end costs the loop as much as a small call, and others wait."""
        while self._doomed:
            context, read, refusal = self._doomed.popleft()
            # This is not waited for, because a caller who does not read delays it.
            self._keep(self._abort(context, status_of(refusal, where=read.method)))
            await asyncio.sleep(0)
        self._is_ending = False

    def _keep(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _abort(self, context: Any, status: Status) -> None:
        # The request may have arrived at the last moment.
        if context in self._refused:
            # The caller may have gone.
            with contextlib.suppress(grpc.aio.BaseError, grpc.RpcError):
                await abort(context, status)
