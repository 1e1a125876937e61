"""Bounds the requests that are being received, and the time that each may take.

Nearly every request has arrived when the guard reads it. One that has not after a moment is slow, and has to take one
of few places (limits.py says why, shares.py how owners share them). A request that finds no place, or takes too long,
ends its call with a refusal. The owner of a place is the workspace of the key, or the address of a caller without one.

Hazard: a pending read is never cancelled. Its call is ended, and then the read ends by itself: it raises AbortError.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, NamedTuple

import grpc
from google.rpc.status_pb2 import Status

from services.chassis.grpc.aborting import abort
from services.chassis.grpc.errors import Refusal, status_of
from services.chassis.grpc.shares import Shares

# A request is looked at so many times before it is slow.
_LOOKS: Final = 4


class _Read(NamedTuple):
    method: str
    owner: str
    since: float


class Receiving:
    """The requests of one kind of callers. One that has not arrived after `slow_seconds` is slow."""

    def __init__(self, *, slow_seconds: float, seconds_max: float, places: int) -> None:
        self._slow_seconds = slow_seconds
        self._seconds_max = seconds_max
        self._places = Shares(places)
        # Both in the order in which the reads began.
        self._new: dict[Any, _Read] = {}
        self._slow: dict[Any, _Read] = {}
        self._sweep_time = 0.0
        self._is_sweeping = False
        self._was_late = False
        # Refused, and still pending until their calls have been ended.
        self._refused: set[Any] = set()
        self._endings: set[asyncio.Task[None]] = set()

    async def read(self, context: Any, method: str, owner: str) -> Any:
        """The next message of the call, or EOF."""
        loop = asyncio.get_running_loop()
        self._new[context] = _Read(method, owner, loop.time())
        if not self._is_sweeping:
            self._is_sweeping = True
            self._sweep_later(loop)
        try:
            return await context.read()
        finally:
            self._refused.discard(context)
            self._forget(context)

    def _forget(self, context: Any) -> None:
        if self._new.pop(context, None) is None and (read := self._slow.pop(context, None)) is not None:
            self._places.give_back(read.owner)

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
        self._is_sweeping = bool(self._new or self._slow)
        if self._is_sweeping:
            self._sweep_later(loop)

    def _find_places(self, now: float) -> None:
        """Give each request that has become slow a place, or end its call."""
        while self._new:
            context, read = next(iter(self._new.items()))
            if now - read.since < self._slow_seconds:
                return
            del self._new[context]
            if self._places.take(read.owner):
                self._slow[context] = read
            else:
                message = "the request did not arrive at once, and too many others are arriving slowly"
                self._end(context, read, Refusal("SLOW_REQUESTS_EXCEEDED", message, retry_after=1.0))

    def _end_late(self, now: float) -> None:
        while self._slow:
            context, read = next(iter(self._slow.items()))
            if now - read.since < self._seconds_max:
                return
            self._forget(context)
            message = f"the request did not arrive within {self._seconds_max:g} s"
            self._end(context, read, Refusal("DEADLINE_PASSED", message))

    def _end(self, context: Any, read: _Read, refusal: Refusal) -> None:
        self._refused.add(context)
        ending = asyncio.create_task(self._abort(context, status_of(refusal, where=read.method)))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _abort(self, context: Any, status: Status) -> None:
        # The request may have arrived at the last moment.
        if context in self._refused:
            # The caller may have gone.
            with contextlib.suppress(grpc.aio.BaseError, grpc.RpcError):
                await abort(context, status)
