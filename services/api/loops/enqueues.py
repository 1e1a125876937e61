"""Starts on their way into the queue: one stream to each dispatcher, many items a message.

An item is sent on one stream at a time and answered once. When that stream ends before the answer, the item goes out
again on another, under the same execution id: the dispatchers make that harmless. What is not answered in time is
given up towards its caller (UNAVAILABLE); whether it was stored is then unknown, which is what request_id is for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from services.api.loops.streams import keep_open
from services.chassis.batcher import Level
from services.chassis.client import Channel
from services.chassis.errors import DependencyUnavailable
from windlass.dispatcher.v1 import queue_pb2, queue_pb2_grpc

ITEMS_PER_MESSAGE: Final = 500
BYTES_PER_MESSAGE: Final = 8 * 1024 * 1024
# Beyond it the dispatchers are too slow for us: say so at once.
PENDING_MAX: Final = 20_000
_SWEEP_SECONDS: Final = 0.25


class _Pending:
    """One item until its answer."""

    __slots__ = ("answer", "deadline", "item")

    def __init__(
        self, item: queue_pb2.EnqueueItem, answer: asyncio.Future[queue_pb2.EnqueueAnswer], deadline: float
    ) -> None:
        self.item = item
        self.answer = answer
        self.deadline = deadline


class _Stream:
    """What one dispatcher has been, or is to be, sent."""

    def __init__(self) -> None:
        self.outbox: deque[_Pending] = deque()
        self.sent: dict[str, _Pending] = {}
        self.level = Level()

    def put(self, pending: _Pending) -> None:
        self.outbox.append(pending)
        self.level.set()

    def unanswered(self) -> list[_Pending]:
        left = [*self.sent.values(), *self.outbox]
        self.sent.clear()
        self.outbox.clear()
        return [pending for pending in left if not pending.answer.done()]


class EnqueueStreams:
    def __init__(self) -> None:
        self._open: list[_Stream] = []
        # While no stream is open.
        self._stranded: deque[_Pending] = deque()
        self._pending: dict[str, _Pending] = {}
        self._turn = 0

    async def enqueue(self, item: queue_pb2.EnqueueItem, seconds: float) -> queue_pb2.EnqueueAnswer:
        if len(self._pending) >= PENDING_MAX:
            raise DependencyUnavailable("the dispatcher", "too many starts wait for it")
        loop = asyncio.get_running_loop()
        pending = _Pending(item, loop.create_future(), loop.time() + seconds)
        execution_id = item.start.execution_id
        self._pending[execution_id] = pending
        self._send(pending)
        try:
            return await pending.answer
        finally:
            self._pending.pop(execution_id, None)

    async def serve(self, address: str, channel: Channel) -> None:
        """The stream to one dispatcher, for as long as that is listed."""
        stub = queue_pb2_grpc.EnqueueServiceStub(channel)
        stream = _Stream()
        await keep_open(
            channel,
            stub.Enqueue,
            write=lambda call: self._write(stream, call),
            heard=lambda response: _answer(stream, response),
            opened=lambda: self._opened(stream),
            lost=lambda: self._lost(stream),
            name=f"enqueue {address}",
        )

    async def sweep(self) -> None:
        """For ever: give up what is late. One timer for all instead of one for each."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = loop.time()
            for pending in list(self._pending.values()):
                if pending.deadline <= now and not pending.answer.done():
                    pending.answer.set_exception(DependencyUnavailable("the dispatcher"))
            self._stranded = deque(pending for pending in self._stranded if not pending.answer.done())

    def _send(self, pending: _Pending) -> None:
        if not self._open:
            self._stranded.append(pending)
            return
        self._turn = (self._turn + 1) % len(self._open)
        self._open[self._turn].put(pending)

    def _opened(self, stream: _Stream) -> None:
        self._open.append(stream)
        while self._stranded:
            pending = self._stranded.popleft()
            if not pending.answer.done():
                stream.put(pending)

    def _lost(self, stream: _Stream) -> None:
        if stream in self._open:
            self._open.remove(stream)
        for pending in stream.unanswered():
            self._send(pending)

    async def _write(self, stream: _Stream, call: Any) -> None:
        while True:
            await stream.level.wait()
            while stream.outbox:
                await call.write(_gathered(stream))


def _gathered(stream: _Stream) -> queue_pb2.EnqueueRequest:
    request = queue_pb2.EnqueueRequest()
    items = request.items
    size = 0
    while stream.outbox and len(items) < ITEMS_PER_MESSAGE and size < BYTES_PER_MESSAGE:
        pending = stream.outbox.popleft()
        if pending.answer.done():  # its caller has gone before it was sent
            continue
        stream.sent[pending.item.start.execution_id] = pending
        items.append(pending.item)
        size += len(pending.item.start.input)
    return request


def _answer(stream: _Stream, response: queue_pb2.EnqueueResponse) -> None:
    for answer in response.answers:
        pending = stream.sent.pop(answer.execution_id, None)
        if pending is not None and not pending.answer.done():
            pending.answer.set_result(answer)
