"""Sends starts to the dispatchers: one stream to each, many items in a message.

An item is sent on one stream at a time. When that stream ends before the answer, the item is sent on another stream
with the same execution id, which the dispatchers recognise. An item without an answer in time fails with UNAVAILABLE.
It may have been stored nevertheless; the caller repeats it with its request_id.

A stream has at most two unanswered messages: one in the dispatcher's present commit and one for the next. Items that
arrive meanwhile are batched into the message after these. A single item waits for nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from services.api.app import refusals
from services.api.peers.streams import keep_open
from services.chassis.grpc.client import Channel
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.process.batcher import Level
from services.chassis.telemetry.metrics import gauge
from windlass.dispatcher.v1 import queue_pb2, queue_pb2_grpc

ITEMS_PER_MESSAGE: Final = 500
MESSAGES_UNANSWERED_MAX: Final = 2
BYTES_PER_MESSAGE: Final = 8 * 1024 * 1024
# Beyond either limit new starts are refused: the dispatchers are too slow.
PENDING_MAX: Final = 20_000
PENDING_BYTES_MAX: Final = 128 * 1024 * 1024
_SWEEP_SECONDS: Final = 0.25
# The id of the execution, or why there is none.
StartResult: TypeAlias = str | Refusal | DependencyUnavailable

_waiting = gauge("windlass_api_starts_waiting", "Starts that no dispatcher has answered yet.")


@dataclass(slots=True, eq=False)
class _Pending:
    """An item without an answer."""

    item: queue_pb2.EnqueueItem
    answer: asyncio.Future[StartResult]
    deadline: float
    size: int
    # The number of the message in which it was last sent.
    message: int = 0


class EnqueueStream:
    """The unanswered items of the stream to one dispatcher."""

    def __init__(self) -> None:
        self.sent: dict[str, _Pending] = {}
        # The numbers of messages without any answer.
        self.unanswered: set[int] = set()
        self.level = Level()

    @property
    def may_send(self) -> bool:
        return len(self.unanswered) < MESSAGES_UNANSWERED_MAX


class EnqueueStreams:
    def __init__(self, before_send: Callable[[], None]) -> None:
        """`before_send` is called before anything is sent, so that coordinators hear of watched starts first."""
        self._before_send = before_send
        # The next stream that may send takes all of it, so a slow dispatcher gets less.
        self.outbox: deque[_Pending] = deque()
        self._open: list[EnqueueStream] = []
        self._pending: dict[str, _Pending] = {}
        self._pending_bytes = 0
        self._messages = itertools.count(1)

    def enqueue(self, item: queue_pb2.EnqueueItem, seconds: float) -> asyncio.Future[StartResult]:
        if len(self._pending) >= PENDING_MAX or self._pending_bytes >= PENDING_BYTES_MAX:
            raise DependencyUnavailable("the dispatcher", "too many starts wait for it")
        loop = asyncio.get_running_loop()
        pending = _Pending(item, loop.create_future(), loop.time() + seconds, len(item.start.input))
        self._pending[item.start.execution_id] = pending
        self._pending_bytes += pending.size
        self.outbox.append(pending)
        self._wake()
        return pending.answer

    async def serve(self, address: str, channel: Channel) -> None:
        """Keep the stream to one dispatcher while it is listed."""
        await keep_open(self, channel, queue_pb2_grpc.EnqueueServiceStub(channel).Enqueue, f"enqueue {address}")

    async def sweep(self) -> None:
        """Give up late items. One timer serves all items."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.run_once()

    def run_once(self) -> None:
        now = asyncio.get_running_loop().time()
        _waiting.set(len(self._pending))
        for execution_id, pending in list(self._pending.items()):
            if pending.deadline <= now and not pending.answer.done():
                # It is not raised here, because asyncio would log it when the caller has gone.
                pending.answer.set_result(DependencyUnavailable("the dispatcher"))
            if pending.answer.done():
                # It was given up, here or by its caller. An answer that still arrives is ignored.
                self._forget(execution_id)
        # A stream may be open whose dispatcher takes nothing; its items would stay for ever.
        if any(pending.answer.done() for pending in self.outbox):
            self.outbox = deque(pending for pending in self.outbox if not pending.answer.done())

    def _forget(self, execution_id: str) -> None:
        if (pending := self._pending.pop(execution_id, None)) is not None:
            self._pending_bytes -= pending.size

    def _wake(self) -> None:
        for stream in self._open:
            if stream.may_send:
                self._let_send(stream)
                return

    def _let_send(self, stream: EnqueueStream) -> None:
        # Tasks run in the order in which they are woken, so the watch streams write first.
        self._before_send()
        stream.level.set()

    def opened(self) -> EnqueueStream:
        stream = EnqueueStream()
        self._open.append(stream)
        self._let_send(stream)
        return stream

    def lost(self, stream: EnqueueStream) -> None:
        self._open.remove(stream)
        # The items return to the front, in their order.
        self.outbox.extendleft(reversed(stream.sent.values()))
        self._wake()

    def heard(self, stream: EnqueueStream, response: queue_pb2.EnqueueResponse) -> None:
        for answer in response.answers:
            pending = stream.sent.pop(answer.execution_id, None)
            if pending is None:
                continue
            stream.unanswered.discard(pending.message)
            self._forget(answer.execution_id)
            if not pending.answer.done():
                pending.answer.set_result(outcome_of(answer, pending.item))
        if self.outbox:
            self._let_send(stream)

    async def write(self, stream: EnqueueStream, call: Any) -> None:
        while True:
            await stream.level.wait()
            while self.outbox and stream.may_send:
                request = self.gathered(stream)
                if request is not None:
                    await call.write(request)

    def gathered(self, stream: EnqueueStream) -> queue_pb2.EnqueueRequest | None:
        request = queue_pb2.EnqueueRequest()
        message = next(self._messages)
        items, size = request.items, 0
        while self.outbox and len(items) < ITEMS_PER_MESSAGE and size < BYTES_PER_MESSAGE:
            pending = self.outbox.popleft()
            if pending.answer.done():  # its caller has gone
                continue
            pending.message = message
            stream.sent[pending.item.start.execution_id] = pending
            items.append(pending.item)
            size += pending.size
        if not items:
            return None
        stream.unanswered.add(message)
        return request


def outcome_of(answer: queue_pb2.EnqueueAnswer, item: queue_pb2.EnqueueItem) -> StartResult:
    outcomes = queue_pb2.EnqueueAnswer
    match answer.outcome:
        case outcomes.QUEUED | outcomes.EXISTING:
            return answer.existing_execution_id or item.start.execution_id
        case outcomes.OUTCOME_UNSPECIFIED:
            return DependencyUnavailable("the dispatcher")
        case outcomes.REQUEST_ID_REUSED:
            return refusals.request_id_reused(item.start.request_id, answer.existing_execution_id)
        case outcomes.QUEUE_FULL:
            return refusals.queue_full(item.start.workspace, item.limits.queued_max)
        case outcomes.WORKSPACE_CLOSED:
            return refusals.key_invalid()
        case _:
            # The dispatcher has logged why, under the id in its message.
            return Refusal("INTERNAL", "this start could not be stored", metadata={"error_id": answer.message})
