"""ExecutionService: starts, reads, the watch, the cancel."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import grpc

from services.api.core import filters
from services.api.handler import refusals
from services.api.handler.authenticator import Authenticator
from services.api.handler.executions import Executions
from services.api.handler.ports import Reads, Watch, Watches
from services.api.handler.starts import Started, Starter
from services.api.handler.watching import EventWatcher
from services.api.rpc import pages, translate
from services.chassis.clock import Clock
from services.chassis.crash import crash_point
from services.chassis.errors import status_of
from services.chassis.identity import caller
from services.chassis.telemetry import (
    AttributeValue,
    Sampler,
    TraceContext,
    emit_span,
    new_trace,
    note_on_span,
    present_trace,
)
from windlass.api.v1 import executions_pb2, executions_pb2_grpc, resources_pb2
from windlass.coordinator.v1 import reads_pb2
from windlass.dispatcher.v1 import queue_pb2

Context = grpc.aio.ServicerContext[Any, Any]
# What is left of a caller's deadline for the answer itself.
ANSWER_SECONDS: Final = 0.1
_ORDERS: Final = {"": False, "create_time desc": False, "create_time": True, "create_time asc": True}
_START: Final = "/windlass.api.v1.ExecutionService/StartExecution"


class ExecutionServicer(executions_pb2_grpc.ExecutionServiceServicer):
    def __init__(
        self,
        starter: Starter,
        executions: Executions,
        watcher: EventWatcher,
        reads: Reads,
        watches: Watches,
        authenticator: Authenticator,
        sampler: Sampler,
        clock: Clock,
    ) -> None:
        self._starter = starter
        self._executions = executions
        self._watcher = watcher
        self._reads = reads
        self._watches = watches
        self._authenticator = authenticator
        self._sampler = sampler
        self._clock = clock

    async def StartExecution(
        self, request: executions_pb2.StartExecutionRequest, context: Context
    ) -> executions_pb2.StartExecutionResponse:
        # The guard has begun a trace, and decided on its sampling, or taken up the caller's.
        trace = present_trace() or new_trace(sampled=False)
        response = await self._start(request, trace, self._answer_by(context))
        if trace.sampled:
            note_on_span(_span_attributes(response))
        return response

    async def BatchStartExecutions(
        self, request: executions_pb2.BatchStartExecutionsRequest, context: Context
    ) -> executions_pb2.BatchStartExecutionsResponse:
        incoming, answer_by = present_trace(), self._answer_by(context)
        items = await asyncio.gather(
            *(self._batch_item(each, incoming, answer_by) for each in request.requests)
        )
        return executions_pb2.BatchStartExecutionsResponse(items=items)

    async def GetExecution(
        self, request: executions_pb2.GetExecutionRequest, context: Context
    ) -> executions_pb2.GetExecutionResponse:
        record = await self._executions.find(caller().workspace, request.execution_id)
        return executions_pb2.GetExecutionResponse(execution=translate.execution(record))

    async def ListExecutions(
        self, request: executions_pb2.ListExecutionsRequest, context: Context
    ) -> executions_pb2.ListExecutionsResponse:
        conditions = filters.parse(request.filter)
        if isinstance(conditions, filters.FilterFault):
            raise refusals.invalid_field("filter", "BAD_FILTER", conditions.message)
        ascending = _ORDERS.get(" ".join(request.order_by.split()))
        if ascending is None:
            raise refusals.invalid_field(
                "order_by", "UNKNOWN_VALUE", "must be create_time or create_time desc"
            )
        workspace = caller().workspace
        list_of = ("executions", workspace, request.filter, str(ascending))
        from_id, size = pages.begin(request, *list_of)
        page = await self._executions.page(workspace, conditions, from_id, size, ascending=ascending)
        token = ""
        if pages.has_more(page.found, size):
            token = pages.next_token(page.records[-1].execution.id, *list_of)
        return executions_pb2.ListExecutionsResponse(
            executions=[translate.execution(record, with_output=False) for record in page.records],
            next_page_token=token,
        )

    async def WatchExecution(
        self, request: executions_pb2.WatchExecutionRequest, context: Context
    ) -> AsyncIterator[executions_pb2.WatchExecutionResponse]:
        events = self._watcher.follow(caller().workspace, request.execution_id, request.after_seq)
        async for record in events:
            yield executions_pb2.WatchExecutionResponse(event=translate.event(record))

    async def CancelExecution(
        self, request: executions_pb2.CancelExecutionRequest, context: Context
    ) -> executions_pb2.CancelExecutionResponse:
        identity = caller()
        record = await self._executions.cancel(
            identity.workspace, request.execution_id, request.reason, self._authenticator.title(identity.name)
        )
        crash_point("api.cancel.before_answer")
        return executions_pb2.CancelExecutionResponse(execution=translate.execution(record))

    async def ListEvents(
        self, request: executions_pb2.ListEventsRequest, context: Context
    ) -> executions_pb2.ListEventsResponse:
        await self._executions.find(caller().workspace, request.execution_id)
        list_of = ("events", request.execution_id, str(request.as_of_seq))
        after, size = pages.begin(request, *list_of)
        after_seq = max(request.after_seq, pages.number(after))
        response = await self._reads.events(
            reads_pb2.ListEventsRequest(
                execution_id=request.execution_id,
                after_seq=after_seq,
                as_of_seq=request.as_of_seq,
                limit=size + 1,
            )
        )
        rows, token = pages.cut(response.events, size, lambda row: str(row.event.seq), *list_of)
        return executions_pb2.ListEventsResponse(
            events=[translate.event(row) for row in rows], next_page_token=token
        )

    def _answer_by(self, context: Context) -> float:
        """Monotonic: what the caller's own deadline leaves for waiting."""
        remaining: float | None = context.time_remaining()
        return math.inf if remaining is None else self._clock.monotonic() + remaining - ANSWER_SECONDS

    async def _start(
        self, request: executions_pb2.StartExecutionRequest, trace: TraceContext, answer_by: float
    ) -> executions_pb2.StartExecutionResponse:
        identity = caller()
        item = await self._starter.prepare(
            identity.workspace,
            self._authenticator.title(identity.name),
            translate.start_command(request),
            trace,
        )
        if not request.HasField("wait"):
            return await self._answer(request, await self._starter.submit(item))
        seconds = request.wait.seconds + request.wait.nanos / 1e9
        return await self._submit_and_wait(request, item, min(answer_by, self._clock.monotonic() + seconds))

    async def _answer(
        self, request: executions_pb2.StartExecutionRequest, started: Started
    ) -> executions_pb2.StartExecutionResponse:
        crash_point("api.start.before_answer")
        if started.existing_id:
            record = await self._executions.find(started.order.workspace, started.existing_id)
            return executions_pb2.StartExecutionResponse(execution=translate.execution(record), existing=True)
        return executions_pb2.StartExecutionResponse(
            execution=translate.pending(started.order, request.input)
        )

    async def _submit_and_wait(
        self, request: executions_pb2.StartExecutionRequest, item: queue_pb2.EnqueueItem, end: float
    ) -> executions_pb2.StartExecutionResponse:
        # Before the execution exists for anybody: its end cannot be missed.
        watch = self._watches.open(item.start.execution_id, is_new=True)
        try:
            started = await self._starter.submit(item)
            if started.existing_id:
                return await self._wait_for_existing(request, started, end)
            return await self._wait_for_end(request, started, watch, end)
        finally:
            watch.close()

    async def _wait_for_end(
        self, request: executions_pb2.StartExecutionRequest, started: Started, watch: Watch, end: float
    ) -> executions_pb2.StartExecutionResponse:
        final = await self._executions.wait(watch, end - self._clock.monotonic())
        if final is None:
            final = await self._executions.find(started.order.workspace, started.order.execution_id)
        return executions_pb2.StartExecutionResponse(execution=translate.execution(final))

    async def _wait_for_existing(
        self, request: executions_pb2.StartExecutionRequest, started: Started, end: float
    ) -> executions_pb2.StartExecutionResponse:
        watch = self._watches.open(started.existing_id)
        try:
            # It may have ended long ago: then nobody will tell.
            record = await self._executions.find(started.order.workspace, started.existing_id)
            if not _is_final(record):
                final = await self._executions.wait(watch, end - self._clock.monotonic())
                record = final or await self._executions.find(started.order.workspace, started.existing_id)
            return executions_pb2.StartExecutionResponse(execution=translate.execution(record), existing=True)
        finally:
            watch.close()

    async def _batch_item(
        self, request: executions_pb2.StartExecutionRequest, incoming: TraceContext | None, answer_by: float
    ) -> executions_pb2.BatchStartExecutionsResponse.Item:
        trace = new_trace(self._sampler.take()) if incoming is None else incoming.child()
        start_ns = self._clock.epoch_ns() if trace.sampled else 0
        try:
            response = await self._start(request, trace, answer_by)
            item = executions_pb2.BatchStartExecutionsResponse.Item(result=response)
            error = ""
        except Exception as failure:  # noqa: BLE001 - each item has a fate of its own
            status = status_of(failure, where=_START)
            item, error = executions_pb2.BatchStartExecutionsResponse.Item(status=status), status.message
        if trace.sampled:
            attributes = _span_attributes(item.result) if item.HasField("result") else {}
            self._emit(trace, incoming, start_ns, attributes, error)
        return item

    def _emit(
        self,
        trace: TraceContext,
        parent: TraceContext | None,
        start_ns: int,
        attributes: Mapping[str, AttributeValue],
        error: str,
    ) -> None:
        """Each execution of a batch has the span that a single start has."""
        emit_span(
            "api.StartExecution",
            trace,
            parent=parent,
            start_ns=start_ns,
            end_ns=self._clock.epoch_ns(),
            attributes={"rpc.system": "grpc", "rpc.method": _START, **attributes},
            error=error,
            kind="server",
        )


def _span_attributes(response: executions_pb2.StartExecutionResponse) -> dict[str, AttributeValue]:
    """By which people find a trace: the root span carries what its children do."""
    return {
        "execution.id": response.execution.id,
        "workspace": caller().workspace,
        "workflow": response.execution.workflow,
        "existing": response.existing,
    }


def _is_final(record: reads_pb2.ExecutionRecord) -> bool:
    return record.execution.state in (
        resources_pb2.Execution.SUCCESS,
        resources_pb2.Execution.FAILED,
        resources_pb2.Execution.CANCELLED,
        resources_pb2.Execution.TIMEOUT,
    )
