"""A start from the request to its answer, in two steps: begun (checked and on its way), then ended (durable, final).

Two steps, because a batch begins all of its starts before it waits for the first: they share commits, and cost no task
each. Each start of a batch has a fate, a trace and a span of its own.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple

import grpc

from services.api.handler.authenticator import Authenticator
from services.api.handler.executions import FINAL, Executions
from services.api.handler.ports import Watch, Watches
from services.api.handler.starts import Started, Starter
from services.api.rpc import translate
from services.chassis.clock import Clock
from services.chassis.crash import crash_point
from services.chassis.errors import status_of
from services.chassis.identity import caller
from services.chassis.telemetry import AttributeValue, Sampler, TraceContext, emit_span, new_trace
from windlass.api.v1 import executions_pb2
from windlass.dispatcher.v1 import queue_pb2

Context = grpc.aio.ServicerContext[Any, Any]
Response = executions_pb2.StartExecutionResponse
Item = executions_pb2.BatchStartExecutionsResponse.Item
# What is left of a caller's deadline for the answer itself.
ANSWER_SECONDS: Final = 0.1
_METHOD: Final = "/windlass.api.v1.ExecutionService/StartExecution"


class _Begun(NamedTuple):
    request: executions_pb2.StartExecutionRequest
    item: queue_pb2.EnqueueItem
    started: Coroutine[Any, Any, Started]
    # Set when the caller waits for the end.
    watch: Watch | None


class _Traced(NamedTuple):
    context: TraceContext
    start_ns: int


class Starting:
    def __init__(
        self,
        starter: Starter,
        executions: Executions,
        watches: Watches,
        authenticator: Authenticator,
        sampler: Sampler,
        clock: Clock,
    ) -> None:
        self._starter = starter
        self._executions = executions
        self._watches = watches
        self._authenticator = authenticator
        self._sampler = sampler
        self._clock = clock

    def answer_by(self, context: Context) -> float:
        """Monotonic: what the caller's own deadline leaves for waiting."""
        remaining: float | None = context.time_remaining()
        return math.inf if remaining is None else self._clock.monotonic() + remaining - ANSWER_SECONDS

    async def one(
        self, request: executions_pb2.StartExecutionRequest, trace: TraceContext, answer_by: float
    ) -> Response:
        return await self._end(await self._begin(request, trace), answer_by)

    async def all(
        self,
        requests: list[executions_pb2.StartExecutionRequest],
        incoming: TraceContext | None,
        answer_by: float,
    ) -> list[Item]:
        """In the order of the requests; a failure is the item's own."""
        traces = [self._trace(incoming) for _ in requests]
        begun: list[_Begun | Exception] = []
        for request, trace in zip(requests, traces, strict=True):
            try:
                begun.append(await self._begin(request, trace.context))
            except Exception as failure:  # noqa: BLE001 - each item has a fate of its own
                begun.append(failure)
        items: list[Item] = []
        try:
            for each in begun:
                items.append(await self._item(each, answer_by))
                self._emit(traces[len(items) - 1], incoming, items[-1])
        finally:
            for each in begun[
                len(items) :
            ]:  # the caller has gone; what is on its way is started all the same
                if isinstance(each, _Begun):
                    each.started.close()
                    if each.watch is not None:
                        each.watch.close()
        return items

    async def _begin(self, request: executions_pb2.StartExecutionRequest, trace: TraceContext) -> _Begun:
        identity = caller()
        item = await self._starter.prepare(
            identity.workspace,
            self._authenticator.title(identity.name),
            translate.start_command(request),
            trace,
        )
        watch = None
        if request.HasField("wait"):
            # Before the execution exists for anybody: its end cannot be missed.
            watch = self._watches.open(item.start.execution_id, is_new=True)
        return _Begun(request, item, self._starter.submit(item), watch)

    async def _end(self, begun: _Begun, answer_by: float) -> Response:
        try:
            started = await begun.started
            crash_point("api.start.before_answer")
            if begun.watch is None:
                return await self._answer(begun, started)
            wait = begun.request.wait
            seconds = wait.seconds + wait.nanos / 1e9
            end = min(answer_by, self._clock.monotonic() + seconds)
            if started.existing_id:
                return await self._wait_for_existing(started, end)
            return await self._wait_for_end(started, begun.watch, end)
        finally:
            if begun.watch is not None:
                begun.watch.close()

    async def _answer(self, begun: _Begun, started: Started) -> Response:
        if started.existing_id:
            record = await self._executions.find(started.order.workspace, started.existing_id)
            return Response(execution=translate.execution(record), existing=True)
        return Response(execution=translate.pending(started.order, begun.request.input))

    async def _wait_for_end(self, started: Started, watch: Watch, end: float) -> Response:
        final = await self._executions.wait(watch, end - self._clock.monotonic())
        if final is None:
            final = await self._executions.find(started.order.workspace, started.order.execution_id)
        return Response(execution=translate.execution(final))

    async def _wait_for_existing(self, started: Started, end: float) -> Response:
        workspace, execution_id = started.order.workspace, started.existing_id
        watch = self._watches.open(execution_id)
        try:
            # It may have ended long ago: then nobody will tell.
            record = await self._executions.find(workspace, execution_id)
            if record.execution.state not in FINAL:
                final = await self._executions.wait(watch, end - self._clock.monotonic())
                record = final or await self._executions.find(workspace, execution_id)
            return Response(execution=translate.execution(record), existing=True)
        finally:
            watch.close()

    async def _item(self, begun: _Begun | Exception, answer_by: float) -> Item:
        try:
            if isinstance(begun, Exception):
                raise begun
            return Item(result=await self._end(begun, answer_by))
        except Exception as failure:  # noqa: BLE001 - each item has a fate of its own
            return Item(status=status_of(failure, where=_METHOD))

    def _trace(self, incoming: TraceContext | None) -> _Traced:
        context = new_trace(self._sampler.take()) if incoming is None else incoming.child()
        return _Traced(context, self._clock.epoch_ns() if context.sampled else 0)

    def _emit(self, trace: _Traced, parent: TraceContext | None, item: Item) -> None:
        """The span that a single start has."""
        if not trace.context.sampled:
            return
        attributes = span_attributes(item.result) if item.HasField("result") else {}
        emit_span(
            "api.StartExecution",
            trace.context,
            parent=parent,
            start_ns=trace.start_ns,
            end_ns=self._clock.epoch_ns(),
            attributes={"rpc.system": "grpc", "rpc.method": _METHOD, **attributes},
            error=item.status.message,
            kind="server",
        )


def span_attributes(response: Response) -> dict[str, AttributeValue]:
    """By which people find a trace: the root span carries what its children do."""
    return {
        "execution.id": response.execution.id,
        "workspace": caller().workspace,
        "workflow": response.execution.workflow,
        "existing": response.existing,
    }
