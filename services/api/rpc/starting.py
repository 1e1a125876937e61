"""A start from the request to its answer, in two steps: begun (checked and sent), then ended (durable, or final).

A batch begins all of its starts before it waits for the first, so that they share commits and need no task each. Each
start of a batch is checked by itself, because the guard only looks at the batch, and has an outcome, a trace and a span
of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Final, NamedTuple

from services.api.app.executions import Executions
from services.api.app.ports import ExecutionView, Watch, Watches
from services.api.app.startables import VIOLATIONS_MAX
from services.api.app.starts import StartCommand, Starter
from services.api.rpc import translate
from services.api.rpc.structs import holding
from services.chassis.grpc.errors import Refusal, status_of
from services.chassis.grpc.guard import RpcCall
from services.chassis.grpc.validation import judge
from services.chassis.identity.callers import caller
from services.chassis.process.clock import Clock
from services.chassis.process.crash import crash_point
from services.chassis.telemetry.tracing import AttributeValue, Sampler, TraceContext, emit_span, new_trace
from windlass.api.v1 import executions_pb2
from windlass.types.v1.start_pb2 import StartOrder

StartRequest = executions_pb2.StartExecutionRequest
Response = executions_pb2.StartExecutionResponse
Item = executions_pb2.BatchStartExecutionsResponse.Item
# This part of a caller's deadline is left for the answer itself.
ANSWER_SECONDS: Final = 0.1
# Starts of a batch that are begun before other calls have their turn.
TRIED_AT_ONCE: Final = 10
# The items of a batch share this number of violations; each item names at least one.
VIOLATIONS_OF_A_BATCH: Final = 1_000
_METHOD: Final = "/windlass.api.v1.ExecutionService/StartExecution"


class _Begun(NamedTuple):
    request: StartRequest
    # None: it was started before.
    order: StartOrder | None
    # The id of the execution.
    started: Coroutine[Any, Any, str] | str
    # Set when the caller waits for the end of a new execution.
    watch: Watch | None

    def abandon(self) -> None:
        if not isinstance(self.started, str):
            self.started.close()
        if self.watch is not None:
            self.watch.close()


class _Refused(NamedTuple):
    """A start that is refused, unless its request_id was used for an earlier one."""

    request: StartRequest
    command: StartCommand
    refusal: Refusal


class _Traced(NamedTuple):
    context: TraceContext
    start_ns: int


class Starting:
    def __init__(
        self, starter: Starter, executions: Executions, watches: Watches, sampler: Sampler, clock: Clock
    ) -> None:
        self._starter = starter
        self._executions = executions
        self._watches = watches
        self._sampler = sampler
        self._clock = clock

    def answer_by(self, context: RpcCall) -> float:
        """The caller's deadline, less the time for the answer, on the monotonic clock."""
        remaining: float | None = context.time_remaining()
        return math.inf if remaining is None else self._clock.monotonic() + remaining - ANSWER_SECONDS

    async def one(self, request: StartRequest, trace: TraceContext, answer_by: float) -> Response:
        begun: _Begun | _Refused | Exception = await self._begin(request, trace)
        if isinstance(begun, _Refused):
            (begun,) = await self._recalled([begun])
        if isinstance(begun, Exception):
            raise begun
        return await self._end(begun, answer_by)

    async def all(self, requests: list[StartRequest], incoming: TraceContext | None, answer_by: float) -> list[Item]:
        """The items in the order of the requests. A start that fails does not fail the others."""
        traces = [self._trace(incoming) for _ in requests]
        tried: list[_Begun | _Refused | Exception] = []
        items: list[Item] = []
        violations_max = min(VIOLATIONS_MAX, max(1, VIOLATIONS_OF_A_BATCH // max(1, len(requests))))
        try:
            for request, trace in zip(requests, traces, strict=True):
                tried.append(await self._try(request, trace.context, violations_max))
                if len(tried) % TRIED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            for each in await self._recalled(tried):
                items.append(await self._item(each, answer_by))
                self._emit(traces[len(items) - 1], incoming, items[-1])
        finally:
            # The caller has gone. Starts that were sent happen all the same.
            for rest in tried[len(items) :]:
                if isinstance(rest, _Begun):
                    rest.abandon()
        return items

    async def _try(
        self, request: StartRequest, trace: TraceContext, violations_max: int
    ) -> _Begun | _Refused | Exception:
        try:
            await judge(request)
            return await self._begin(request, trace, violations_max)
        except Exception as failure:  # noqa: BLE001 - it is the item's outcome
            return failure

    async def _begin(
        self, request: StartRequest, trace: TraceContext, violations_max: int = VIOLATIONS_MAX
    ) -> _Begun | _Refused:
        identity = caller()
        command = await translate.start_command(request)
        try:
            start = await self._starter.prepare(identity.workspace, command, violations_max)
        except Refusal as refusal:
            if not command.request_id:
                raise
            return _Refused(request, command, refusal)
        item = translate.enqueue_item(start, identity.title, trace.header())
        watch = None
        if request.HasField("wait"):
            # The watch is opened before the execution exists, so that its end is not missed.
            watch = self._watches.open(start.execution_id, is_new=True)
            item.start.watcher = self._watches.name
        try:
            return _Begun(request, item.start, self._starter.submit(start, item), watch)
        except BaseException:
            # Too many starts are on their way. This one is not begun, and nobody else closes its watch.
            if watch is not None:
                watch.close()
            raise

    async def _recalled(self, tried: Sequence[_Begun | _Refused | Exception]) -> list[_Begun | Exception]:
        """Replace refused starts by what their request_ids had started before. The queue is asked once for all."""
        commands = [each.command for each in tried if isinstance(each, _Refused)]
        known: Iterator[str | Exception | None] = iter(())
        if commands:
            try:
                known = iter(await self._starter.recall(caller().workspace, commands))
            except Exception as failure:  # noqa: BLE001 - the outcome of the refused ones is unknown
                known = itertools.repeat(failure)
        return [_fate(each, next(known)) if isinstance(each, _Refused) else each for each in tried]

    async def _end(self, begun: _Begun, answer_by: float) -> Response:
        try:
            execution_id = begun.started if isinstance(begun.started, str) else await begun.started
            crash_point("api.start.before_answer")
            # Its own id means that it is new, or that we have sent it twice.
            if begun.order is None or begun.order.execution_id != execution_id:
                found = await self._existing(begun.request, execution_id, answer_by)
                return await translate.answer(Response(existing=True), found)
            if begun.watch is None:
                return holding(Response, execution=translate.pending(begun.order, begun.request.input))
            found = await self._ended(execution_id, begun.watch, self._wait_end(begun.request, answer_by))
            return await translate.answer(Response(), found)
        finally:
            if begun.watch is not None:
                begun.watch.close()

    async def _existing(self, request: StartRequest, execution_id: str, answer_by: float) -> ExecutionView:
        if not request.HasField("wait"):
            return await self._find(execution_id)
        end = self._wait_end(request, answer_by)
        watch = self._watches.open(execution_id)
        try:
            # It may have ended long ago; then no update will come.
            found = await self._find(execution_id)
            return found if found.is_final else await self._ended(execution_id, watch, end)
        finally:
            watch.close()

    async def _ended(self, execution_id: str, watch: Watch, end: float) -> ExecutionView:
        """The final execution, or as it is when the time is over."""
        final = await self._executions.wait(watch, end)
        return final or await self._find(execution_id)

    async def _find(self, execution_id: str) -> ExecutionView:
        return await self._executions.find(caller().workspace, execution_id)

    def _wait_end(self, request: StartRequest, answer_by: float) -> float:
        return min(answer_by, self._clock.monotonic() + request.wait.seconds + request.wait.nanos / 1e9)

    async def _item(self, begun: _Begun | Exception, answer_by: float) -> Item:
        try:
            if isinstance(begun, Exception):
                raise begun
            return holding(Item, result=await self._end(begun, answer_by))
        except Exception as failure:  # noqa: BLE001 - each item has an outcome of its own
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


def _fate(refused: _Refused, known: str | Exception | None) -> _Begun | Exception:
    if isinstance(known, str):
        return _Begun(refused.request, None, known, None)
    return known or refused.refusal


def span_attributes(response: Response | executions_pb2.ForkExecutionResponse) -> dict[str, AttributeValue]:
    """People find a trace by the attributes of its root span."""
    return {
        "execution.id": response.execution.id,
        "workspace": caller().workspace,
        "workflow": response.execution.workflow,
        "existing": response.existing,
    }
