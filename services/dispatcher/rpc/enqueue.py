"""EnqueueService: each stream has a reader that brings starts to the admission loop, and a writer that sends answers.

The answers of one batch are sent together. When a stream breaks, the starts that it brought are still admitted. Api
repeats the unanswered ones, under the same ids.

Backpressure: the readers stop while too many starts wait for a batch.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Final

import grpc

from services.chassis.process.crash import crash_point
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.tracing import may_be_sampled
from services.dispatcher.app.admission_inbox import AdmissionInbox
from services.dispatcher.app.ports import Arrival
from services.dispatcher.core.items import Admission, EnqueueOutcome, NewStart
from services.dispatcher.rpc.spans import emit, sampled_context
from services.dispatcher.rpc.translate import Malformed, new_start_of
from windlass.dispatcher.v1 import queue_pb2, queue_pb2_grpc

log = logger(__name__)

ANSWERS_PER_MESSAGE: Final = 500


class EnqueueServicer(queue_pb2_grpc.EnqueueServiceServicer):
    def __init__(self, inbox: AdmissionInbox) -> None:
        self._inbox = inbox
        self._streams: set[_EnqueueStream] = set()
        self._is_draining = False

    def drain(self) -> None:
        """Every stream ends when its starts are answered; api then uses another replica."""
        self._is_draining = True
        for stream in self._streams:
            stream.close()

    async def Enqueue(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        stream = _EnqueueStream(context)
        self._streams.add(stream)
        if self._is_draining:
            stream.close()
        reader = asyncio.create_task(stream.read(self._inbox))
        writer = asyncio.create_task(stream.write())
        try:
            await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                reader.result()
                stream.close()
            await writer
        finally:
            self._streams.discard(stream)
            reader.cancel()
            writer.cancel()


class _EnqueueStream:
    def __init__(self, context: Any) -> None:
        self._context = context
        self._answers: deque[queue_pb2.EnqueueAnswer] = deque()
        self._outstanding = 0
        self._is_closed = False
        self._wake_writer = asyncio.Event()
        # The arrival time of sampled starts, by execution id.
        self._arrived_ns: dict[str, int] = {}

    def close(self) -> None:
        """Take no more starts. Those that were taken are still answered."""
        self._is_closed = True
        self._wake_writer.set()

    async def read(self, inbox: AdmissionInbox) -> None:
        """Read until api half-closes the stream."""
        while True:
            await inbox.room()
            request = await self._context.read()
            if request is grpc.aio.EOF:
                return
            if not self._is_closed:
                self.enqueue(request.items, inbox)

    def enqueue(self, items: Any, inbox: AdmissionInbox) -> None:
        arrivals: list[Arrival] = []
        for item in items:
            try:
                new_start = new_start_of(item)
            except (Malformed, ValueError) as failure:
                execution_id = item.start.execution_id
                # The text of this log event is published (tests/integration/dispatcher/test_log_events.py).
                log.error("error processing item", execution_id=execution_id, error=str(failure))
                self._queue_answer(execution_id, Admission(EnqueueOutcome.REJECTED, message=str(failure)))
                continue
            if may_be_sampled(item.start.traceparent):
                self._arrived_ns[new_start.execution_id] = time.time_ns()
            arrivals.append(Arrival(new_start, self))
        self._outstanding += len(arrivals)
        if arrivals:
            inbox.enqueue(arrivals)

    def answered(self, new_start: NewStart, admission: Admission) -> None:
        self._outstanding -= 1
        if self._arrived_ns:
            self._trace(new_start, admission)
        self._queue_answer(new_start.execution_id, admission)

    def _queue_answer(self, execution_id: str, admission: Admission) -> None:
        answer = queue_pb2.EnqueueAnswer(
            execution_id=execution_id, outcome=queue_pb2.EnqueueAnswer.Outcome.ValueType(int(admission.outcome))
        )
        if admission.existing_execution_id:
            answer.existing_execution_id = admission.existing_execution_id
        if admission.message:
            answer.message = admission.message
        self._answers.append(answer)
        self._wake_writer.set()

    def _trace(self, new_start: NewStart, admission: Admission) -> None:
        arrived_ns = self._arrived_ns.pop(new_start.execution_id, None)
        order: Any = new_start.order
        if arrived_ns is not None and (context := sampled_context(order.traceparent)) is not None:
            attributes = {"execution.id": new_start.execution_id, "outcome": admission.outcome.name}
            emit("dispatcher.enqueue", context, arrived_ns, time.time_ns(), attributes)

    async def write(self) -> None:
        """Send answers until the stream is closed and each start that was taken has its answer."""
        while True:
            await self._wake_writer.wait()
            self._wake_writer.clear()
            while self._answers:
                count = min(len(self._answers), ANSWERS_PER_MESSAGE)
                batch = [self._answers.popleft() for _ in range(count)]
                crash_point("dispatcher.enqueue.before_answer")
                await self._context.write(queue_pb2.EnqueueResponse(answers=batch))
                crash_point("dispatcher.enqueue.after_answer")
            if self._is_closed and not self._outstanding:
                return
