"""Reads from any coordinator: executions, runs and events as the journal has them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from operator import attrgetter
from typing import Final

from services.api.app.ports import (
    FINAL,
    AnnouncedModules,
    ApprovalView,
    EventView,
    ExecutionPage,
    ExecutionQuery,
    ExecutionView,
    RunView,
)
from services.api.peers.replicas import Replicas, pieces
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from windlass.api.v1 import resources_pb2
from windlass.coordinator.v1 import reads_pb2 as pb
from windlass.coordinator.v1.reads_pb2_grpc import ReadServiceStub
from windlass.dispatcher.v1.queue_pb2 import GetQueuePlaceResponse, Queued
from windlass.types.v1.start_pb2 import StartOrder

# A record carries an input and an output of up to 256 KiB each, and the names of up to 2,000 nodes. All of them have to
# fit into a message.
IDS_PER_CALL: Final = 80
_UPGRADE_SECONDS: Final = 5.0
_CHOICES: Final = {number: name for name, number in resources_pb2.Approval.Choice.items()}
_STATES: Final = {number: name for name, number in resources_pb2.Execution.State.items()}


class CoordinatorReads:
    def __init__(self, peers: Replicas) -> None:
        self._peers = peers

    async def executions(self, execution_ids: Sequence[str]) -> Sequence[ExecutionView]:
        found: list[ExecutionView] = []
        for ids in pieces(execution_ids, IDS_PER_CALL):
            request = pb.GetExecutionsRequest(execution_ids=ids)
            response = await self._peers.call(lambda channel: ReadServiceStub(channel).GetExecutions, request)
            found.extend(map(execution_of, response.executions))
        return found

    async def execution_page(self, asked: ExecutionQuery) -> ExecutionPage:
        request = pb.ListExecutionsRequest(
            workspace=asked.workspace,
            conditions=asked.filter.conditions,
            from_execution_id=asked.from_id,
            ascending=asked.ascending,
            limit=asked.limit,
            takes_cut=True,
        )
        try:
            response = await self._peers.call(lambda channel: ReadServiceStub(channel).ListExecutions, request)
        except Refusal as refused:
            # This api accepted the filter, so the coordinator has an older version: an upgrade is under way.
            if refused.reason == "INVALID_REQUEST":
                told = "a coordinator of another version cannot apply this filter"
                raise DependencyUnavailable(self._peers.name, told, retry_after=_UPGRADE_SECONDS) from None
            raise
        return ExecutionPage([execution_of(record) for record in response.executions], response.is_cut)

    async def runs(self, request: pb.ListRunsRequest) -> pb.ListRunsResponse:
        return await self._peers.call(lambda channel: ReadServiceStub(channel).ListRuns, request)

    async def run(self, run_id: str) -> pb.RunRecord | None:
        request = pb.GetRunRequest(run_id=run_id)
        response = await self._peers.call(lambda channel: ReadServiceStub(channel).GetRun, request)
        return response.run if response.HasField("run") else None

    async def run_view(self, run_id: str) -> RunView | None:
        record = await self.run(run_id)
        return None if record is None else _view_of(record)

    async def approvals(self, request: pb.ListApprovalsRequest) -> pb.ListApprovalsResponse:
        return await self._peers.call(lambda channel: ReadServiceStub(channel).ListApprovals, request)

    async def approval(self, approval_id: str) -> ApprovalView | None:
        request = pb.GetApprovalRequest(approval_id=approval_id)
        response = await self._peers.call(lambda channel: ReadServiceStub(channel).GetApproval, request)
        return approval_of(response.approval) if response.HasField("approval") else None

    def run_output(self, run_id: str, workspace: str) -> AsyncIterator[bytes]:
        request = pb.ReadRunOutputRequest(run_id=run_id, workspace=workspace)
        return self._peers.parts(lambda channel: ReadServiceStub(channel).ReadRunOutput(request), attrgetter("data"))

    def run_inputs_in_parts(self, run_id: str, workspace: str) -> AsyncIterator[bytes]:
        request = pb.StreamRunInputsRequest(run_id=run_id, workspace=workspace)
        return self._peers.parts(lambda channel: ReadServiceStub(channel).StreamRunInputs(request), attrgetter("data"))

    async def run_inputs(self, run_id: str, workspace: str) -> bytes:
        request = pb.ReadRunInputsRequest(run_id=run_id, workspace=workspace)
        response = await self._peers.call(lambda channel: ReadServiceStub(channel).ReadRunInputs, request)
        return response.documents

    async def events(self, execution_id: str, after_seq: int, limit: int, *, as_of_seq: int = 0) -> Sequence[EventView]:
        request = pb.ListEventsRequest(execution_id=execution_id, after_seq=after_seq, as_of_seq=as_of_seq, limit=limit)
        response = await self._peers.call(lambda channel: ReadServiceStub(channel).ListEvents, request)
        return [event_of(record) for record in response.events]

    async def answer(self, execution_id: str, message_id: str) -> EventView | None:
        request = pb.FindAnswerRequest(execution_id=execution_id, message_id=message_id)
        response = await self._peers.call(lambda channel: ReadServiceStub(channel).FindAnswer, request)
        return event_of(response.event) if response.HasField("event") else None

    async def past(self, execution_id: str, as_of_seq: int) -> ExecutionView | None:
        request = pb.GetPastExecutionRequest(execution_id=execution_id, as_of_seq=as_of_seq)
        response = await self._peers.call(lambda channel: ReadServiceStub(channel).GetPastExecution, request)
        return execution_of(response.execution) if response.HasField("execution") else None

    async def explanation(self, execution_id: str, place: GetQueuePlaceResponse) -> resources_pb2.Explanation | None:
        request = pb.ExplainExecutionRequest(execution_id=execution_id)
        if place.state == Queued.PENDING and place.HasField("wake_time"):
            request.queued_time.CopyFrom(place.wake_time)
        response = await self._peers.call(lambda channel: ReadServiceStub(channel).ExplainExecution, request)
        return response.explanation if response.HasField("explanation") else None

    async def start_order(self, execution_id: str) -> StartOrder | None:
        request = pb.GetStartOrderRequest(execution_id=execution_id)
        response = await self._peers.call(lambda channel: ReadServiceStub(channel).GetStartOrder, request)
        return response.start if response.HasField("start") else None

    async def modules(self, workspace: str) -> AnnouncedModules:
        request = pb.ListModulesRequest(workspace=workspace)
        found = await self._peers.call(lambda channel: ReadServiceStub(channel).ListModules, request)
        return AnnouncedModules(found.modules, found.rendering)


def approval_of(record: pb.ApprovalRecord) -> ApprovalView:
    approval = record.approval
    decisions = [(each.caller, _CHOICES[each.decision]) for each in approval.decisions]
    state = resources_pb2.Approval.State.Name(approval.state)
    return ApprovalView(approval.id, record.workspace, state, record.form, decisions, record)


def _view_of(record: pb.RunRecord) -> RunView:
    run = record.run
    state = resources_pb2.Run.State.Name(run.state)
    return RunView(run.id, record.workspace, state, record.output, run.error.type, run.error.message)


def execution_of(record: pb.ExecutionRecord) -> ExecutionView:
    execution = record.execution
    state = _STATES.get(execution.state, "")
    return ExecutionView(execution.id, record.workspace, state, execution.last_seq, record=record)


def event_of(record: pb.EventRecord) -> EventView:
    is_last = _STATES.get(record.event.state, "") in FINAL
    answer = (record.message_id, record.refusal_reason, record.refusal_message)
    return EventView(record.event.seq, is_last, record, *answer)
