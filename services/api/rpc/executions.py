"""ExecutionService: starts, reads, watches and cancels executions."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import Final

from services.api.app import refusals
from services.api.app.commands import Commands, GivenCommand, NewCommand
from services.api.app.executions import Executions
from services.api.app.explanations import Explanations
from services.api.app.ports import ExecutionQuery, ExecutionReads
from services.api.app.watching import EventWatcher
from services.api.rpc import translate
from services.api.rpc.bulk_jobs import BulkServing
from services.api.rpc.explanations import explanation_of
from services.api.rpc.filter_text import parse
from services.api.rpc.forking import Forking
from services.api.rpc.overrides import judge_retry, node_overrides
from services.api.rpc.pages import Page
from services.api.rpc.starting import Starting, span_attributes
from services.api.rpc.structs import holding, to_json
from services.chassis.grpc.beside import beside
from services.chassis.grpc.guard import RpcCall
from services.chassis.identity.callers import caller
from services.chassis.process.clock import Clock
from services.chassis.process.crash import crash_point
from services.chassis.telemetry.tracing import new_trace, note_on_span, present_trace
from windlass.api.v1 import executions_pb2 as pb
from windlass.api.v1 import executions_pb2_grpc

# A signal may come long before its execution begins, and is durable at once.
QUEUED_SECONDS: Final = 0.5
PAYLOAD_BYTES_MAX: Final = 256 * 1024
_ORDERS: Final = {"": False, "create_time desc": False, "create_time": True, "create_time asc": True}


class ExecutionServicer(executions_pb2_grpc.ExecutionServiceServicer):
    def __init__(
        self,
        starting: Starting,
        forking: Forking,
        executions: Executions,
        commands: Commands,
        explanations: Explanations,
        watcher: EventWatcher,
        reads: ExecutionReads,
        bulk: BulkServing,
        clock: Clock,
    ) -> None:
        self._starting = starting
        self._forking = forking
        self._executions = executions
        self._commands = commands
        self._explanations = explanations
        self._watcher = watcher
        self._reads = reads
        self._bulk = bulk
        self._clock = clock

    async def StartExecution(self, request: pb.StartExecutionRequest, context: RpcCall) -> pb.StartExecutionResponse:
        # The guard has continued the caller's trace, or begun one and decided on its sampling.
        trace = present_trace() or new_trace(sampled=False)
        response = await self._starting.one(request, trace, self._starting.answer_by(context))
        if trace.sampled:
            note_on_span(span_attributes(response))
        return response

    async def BatchStartExecutions(
        self, request: pb.BatchStartExecutionsRequest, context: RpcCall
    ) -> pb.BatchStartExecutionsResponse:
        answer_by = self._starting.answer_by(context)
        items = await self._starting.all(list(request.requests), present_trace(), answer_by)
        return holding(pb.BatchStartExecutionsResponse, items=items)

    async def GetExecution(self, request: pb.GetExecutionRequest, context: RpcCall) -> pb.GetExecutionResponse:
        workspace, execution_id = caller().workspace, request.execution_id
        if request.as_of_seq:
            execution = await self._explanations.as_of(workspace, execution_id, request.as_of_seq)
        else:
            execution = await self._executions.find(workspace, execution_id)
        return await translate.answer(pb.GetExecutionResponse(), execution)

    async def ListExecutions(self, request: pb.ListExecutionsRequest, context: RpcCall) -> pb.ListExecutionsResponse:
        filter_ = parse(request.filter)
        ascending = _ORDERS.get(" ".join(request.order_by.split()))
        if ascending is None:
            raise refusals.invalid_field("order_by", "UNKNOWN_VALUE", "must be create_time or create_time desc")
        workspace = caller().workspace
        page = Page(request, "executions", workspace, request.filter, str(ascending))
        asked = ExecutionQuery(workspace, filter_, page.after, ascending, page.size + 1)
        found = await self._executions.page(asked)
        shown, token = page.cut(found.executions, lambda row: row.id, translate.listed, is_cut=found.is_cut)
        return holding(pb.ListExecutionsResponse, executions=shown, next_page_token=token)

    async def WatchExecution(
        self, request: pb.WatchExecutionRequest, context: RpcCall
    ) -> AsyncIterator[pb.WatchExecutionResponse]:
        events = self._watcher.follow(caller().workspace, request.execution_id, request.after_seq)
        async for event in events:
            shown = await beside(translate.event_bytes(event), functools.partial(translate.event, event))
            yield holding(pb.WatchExecutionResponse, event=shown)

    async def CancelExecution(self, request: pb.CancelExecutionRequest, context: RpcCall) -> pb.CancelExecutionResponse:
        identity = caller()
        execution = await self._executions.cancel(
            identity.workspace, request.execution_id, request.reason, identity.title
        )
        crash_point("api.cancel.before_answer")
        return await translate.answer(pb.CancelExecutionResponse(), execution)

    async def PauseExecution(self, request: pb.PauseExecutionRequest, context: RpcCall) -> pb.PauseExecutionResponse:
        execution = await self._executions.find(caller().workspace, request.execution_id)
        if execution.state != "PAUSED" or request.request_id:
            message = translate.command()
            message.pause.reason = request.reason
            command = NewCommand("pause", request.execution_id, message, request.request_id)
            execution = await self._commands.give(caller().workspace, command)
        return await translate.answer(pb.PauseExecutionResponse(), execution)

    async def ResumeExecution(self, request: pb.ResumeExecutionRequest, context: RpcCall) -> pb.ResumeExecutionResponse:
        message = translate.command()
        message.resume.SetInParent()
        command = NewCommand("resume", request.execution_id, message, request.request_id)
        execution = await self._commands.give(caller().workspace, command)
        return await translate.answer(pb.ResumeExecutionResponse(), execution)

    async def SignalExecution(self, request: pb.SignalExecutionRequest, context: RpcCall) -> pb.SignalExecutionResponse:
        payload = await to_json(request.payload, "payload", PAYLOAD_BYTES_MAX)
        message = translate.command()
        message.signal.signal, message.signal.payload = request.signal, payload
        command = NewCommand("signal", request.execution_id, message, request.request_id, queued_seconds=QUEUED_SECONDS)
        given = await self._commands.answered(caller().workspace, command)
        response = pb.SignalExecutionResponse(delivery=await self._delivery(given))
        return await translate.answer(response, given.execution)

    async def _delivery(self, given: GivenCommand) -> pb.SignalExecutionResponse.Delivery.ValueType:
        """A node that waited has taken the signal in the append in which it came, just after the end of its wait."""
        if not given.answer_seq:
            return pb.SignalExecutionResponse.UNDER_WAY
        following = await self._reads.events(given.execution.id, given.answer_seq, 2)
        is_taken = any(translate.is_taken_signal(event, given.answer_seq) for event in following)
        return pb.SignalExecutionResponse.TAKEN if is_taken else pb.SignalExecutionResponse.KEPT

    async def RetryExecution(self, request: pb.RetryExecutionRequest, context: RpcCall) -> pb.RetryExecutionResponse:
        message = translate.command()
        message.retry.from_node = request.from_node
        overrides = await node_overrides(request.input_overrides, "input_overrides")
        message.retry.input_overrides.update(overrides)
        command = NewCommand("retry", request.execution_id, message, request.request_id)
        judge = functools.partial(
            judge_retry, from_node=request.from_node, nodes={request.from_node, *overrides} - {""}
        )
        execution = await self._commands.reopen(caller().workspace, command, judge)
        return await translate.answer(pb.RetryExecutionResponse(), execution)

    async def ForkExecution(self, request: pb.ForkExecutionRequest, context: RpcCall) -> pb.ForkExecutionResponse:
        trace = present_trace() or new_trace(sampled=False)
        response = await self._forking.fork(request, trace)
        if trace.sampled:
            note_on_span(span_attributes(response))
        return response

    async def ListEvents(self, request: pb.ListEventsRequest, context: RpcCall) -> pb.ListEventsResponse:
        execution = await self._executions.find(caller().workspace, request.execution_id)
        page = Page(request, "events", request.execution_id, str(request.as_of_seq))
        after_seq = max(request.after_seq, page.after_number)
        found = await self._reads.events(request.execution_id, after_seq, page.size + 1, as_of_seq=request.as_of_seq)
        # A list of large events is cut by its coordinator. The end of an execution that was given up is no event of it.
        newest = execution.last_seq - execution.is_given_up
        is_cut = bool(found) and found[-1].seq < min(newest, request.as_of_seq or newest)
        shown, token = await beside(
            sum(map(translate.event_bytes, found)),
            lambda: page.cut(found, lambda event: str(event.seq), translate.event, is_cut=is_cut),
        )
        return holding(pb.ListEventsResponse, events=shown, next_page_token=token)

    async def ExplainExecution(
        self, request: pb.ExplainExecutionRequest, context: RpcCall
    ) -> pb.ExplainExecutionResponse:
        execution, told, place = await self._explanations.of(caller().workspace, request.execution_id)
        explanation = explanation_of(translate.listed(execution), told, place, self._clock.epoch_ns() // 1_000)
        return holding(pb.ExplainExecutionResponse, explanation=explanation)

    async def BulkExecutions(self, request: pb.BulkExecutionsRequest, context: RpcCall) -> pb.BulkExecutionsResponse:
        return await self._bulk.begin(request)

    async def GetBulkJob(self, request: pb.GetBulkJobRequest, context: RpcCall) -> pb.GetBulkJobResponse:
        return await self._bulk.get(request)

    async def ListBulkJobs(self, request: pb.ListBulkJobsRequest, context: RpcCall) -> pb.ListBulkJobsResponse:
        return await self._bulk.page(request)

    async def StopBulkJob(self, request: pb.StopBulkJobRequest, context: RpcCall) -> pb.StopBulkJobResponse:
        return await self._bulk.stop(request)
