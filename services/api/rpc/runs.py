"""RunService: reads runs, the attempts at nodes, from the coordinators; and ends those that somebody else finishes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from services.api.app import refusals
from services.api.app.executions import Executions
from services.api.app.identifiers import is_run_id
from services.api.app.outside_work import OutsideWork
from services.api.app.ports import RunView
from services.api.rpc import translate
from services.api.rpc.letter_inputs import RunInputReads
from services.api.rpc.pages import Page
from services.api.rpc.structs import fill_documents, holding, sorted_json, to_dict
from services.chassis.grpc.beside import beside
from services.chassis.grpc.errors import Refusal
from services.chassis.grpc.guard import RpcCall
from services.chassis.grpc.limits import SMALL_BYTES_MAX
from services.chassis.identity.callers import caller
from windlass.api.v1 import runs_pb2 as pb
from windlass.api.v1 import runs_pb2_grpc
from windlass.coordinator.v1 import commands_pb2, reads_pb2

# The run, as it is shown, says more about these.
_SEEN_IN_THE_RUN: Final = ("OUTPUT_NOT_FOUND", "INPUTS_NOT_FOUND", "INPUTS_NOT_RENDERED")


class RunReads(RunInputReads, Protocol):
    """Any coordinator."""

    async def runs(self, request: reads_pb2.ListRunsRequest) -> reads_pb2.ListRunsResponse: ...

    async def run(self, run_id: str) -> reads_pb2.RunRecord | None: ...

    def run_output(self, run_id: str, workspace: str) -> AsyncIterator[bytes]: ...

    def run_inputs_in_parts(self, run_id: str, workspace: str) -> AsyncIterator[bytes]: ...


class RunServicer(runs_pb2_grpc.RunServiceServicer):
    def __init__(self, executions: Executions, reads: RunReads, outside: OutsideWork) -> None:
        self._executions = executions
        self._reads = reads
        self._outside = outside

    async def ListRuns(self, request: pb.ListRunsRequest, context: RpcCall) -> pb.ListRunsResponse:
        workspace = caller().workspace
        if request.execution_id:
            await self._executions.find(workspace, request.execution_id)
        page = Page(request, "runs", workspace, request.execution_id, request.node, str(request.state))
        found = await self._reads.runs(
            reads_pb2.ListRunsRequest(
                workspace=workspace,
                execution_id=request.execution_id,
                node=request.node,
                state=request.state,
                after_run_id=page.after if is_run_id(page.after) else "",
                limit=page.size + 1,
                takes_cut=True,
            )
        )
        own = [record for record in found.runs if record.workspace == workspace]
        shown, token = await beside(
            found.ByteSize(), lambda: page.cut(own, lambda row: row.run.id, translate.run, is_cut=found.is_cut)
        )
        return holding(pb.ListRunsResponse, runs=shown, next_page_token=token)

    async def GetRun(self, request: pb.GetRunRequest, context: RpcCall) -> pb.GetRunResponse:
        record = await self._reads.run(request.run_id) if is_run_id(request.run_id) else None
        if record is None or record.workspace != caller().workspace:
            raise refusals.run_not_found(request.run_id)
        return holding(pb.GetRunResponse, run=await beside(len(record.output), lambda: translate.run(record)))

    async def GetRunOutput(
        self, request: pb.GetRunOutputRequest, context: RpcCall
    ) -> AsyncIterator[pb.GetRunOutputResponse]:
        if not is_run_id(request.run_id):
            raise refusals.run_not_found(request.run_id)
        with _hinting(request.run_id):
            async for data in self._reads.run_output(request.run_id, caller().workspace):
                yield pb.GetRunOutputResponse(data=data)

    async def GetRunInputs(self, request: pb.GetRunInputsRequest, context: RpcCall) -> pb.GetRunInputsResponse:
        if not is_run_id(request.run_id):
            raise refusals.run_not_found(request.run_id)
        with _hinting(request.run_id):
            documents = await self._reads.run_inputs(request.run_id, caller().workspace)
        response = pb.GetRunInputsResponse()
        await beside(len(documents), lambda: fill_documents(response, documents))
        return response

    async def GetRunInputsJson(
        self, request: pb.GetRunInputsJsonRequest, context: RpcCall
    ) -> AsyncIterator[pb.GetRunInputsJsonResponse]:
        if not is_run_id(request.run_id):
            raise refusals.run_not_found(request.run_id)
        with _hinting(request.run_id):
            async for data in self._reads.run_inputs_in_parts(request.run_id, caller().workspace):
                yield pb.GetRunInputsJsonResponse(data=data)

    async def CompleteRun(self, request: pb.CompleteRunRequest, context: RpcCall) -> pb.CompleteRunResponse:
        run = await self._outside.run_of(request.token)
        output = sorted_json(await to_dict(request.output, "output", SMALL_BYTES_MAX))
        message = commands_pb2.ExecutionCommand()
        message.complete_run.run, message.complete_run.output = run.number, output
        message.complete_run.branch = request.branch
        await self._outside.end(run, "complete", message, lambda now: (now.state, now.output) == ("SUCCESS", output))
        return pb.CompleteRunResponse(run_id=run.id)

    async def FailRun(self, request: pb.FailRunRequest, context: RpcCall) -> pb.FailRunResponse:
        run = await self._outside.run_of(request.token)
        message = commands_pb2.ExecutionCommand()
        failed = message.fail_run
        failed.run, failed.type, failed.message = run.number, request.type or "FAILED", request.message
        failed.retryable = request.retryable

        def ended_so(now: RunView) -> bool:
            return (now.state, now.error_type, now.error_message) == ("FAILED", failed.type, failed.message)

        await self._outside.end(run, "fail", message, ended_so)
        return pb.FailRunResponse(run_id=run.id)

    async def HeartbeatRun(self, request: pb.HeartbeatRunRequest, context: RpcCall) -> pb.HeartbeatRunResponse:
        run = await self._outside.run_of(request.token)
        message = commands_pb2.ExecutionCommand()
        message.heartbeat_run.run = run.number
        if request.HasField("progress"):
            message.heartbeat_run.progress = request.progress
        if request.HasField("message"):
            message.heartbeat_run.message = request.message
        await self._outside.heartbeat(run, message)
        return pb.HeartbeatRunResponse(run_id=run.id)


@contextmanager
def _hinting(run_id: str) -> Iterator[None]:
    """Add the command that helps to what a coordinator refuses. It knows no command line."""
    try:
        yield
    except Refusal as refused:
        if refused.reason == "RUN_NOT_FOUND":
            raise refusals.run_not_found(run_id) from None
        if refused.reason in _SEEN_IN_THE_RUN:
            refused.metadata.setdefault("try", f"windlass run get {run_id}")
        raise
