"""RunService: reads runs, the attempts at nodes, from the coordinators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from services.api.app import refusals
from services.api.app.executions import Executions
from services.api.app.identifiers import is_execution_id
from services.api.rpc import translate
from services.api.rpc.pages import Page
from services.api.rpc.structs import holding
from services.chassis.grpc.guard import RpcCall
from services.chassis.identity.callers import caller
from windlass.api.v1 import runs_pb2 as pb
from windlass.api.v1 import runs_pb2_grpc
from windlass.coordinator.v1 import reads_pb2


class RunReads(Protocol):
    """Any coordinator."""

    async def runs(self, request: reads_pb2.ListRunsRequest) -> reads_pb2.ListRunsResponse: ...

    async def run(self, run_id: str) -> reads_pb2.RunRecord | None: ...

    def run_output(self, run_id: str, workspace: str) -> AsyncIterator[bytes]: ...


class RunServicer(runs_pb2_grpc.RunServiceServicer):
    def __init__(self, executions: Executions, reads: RunReads) -> None:
        self._executions = executions
        self._reads = reads

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
                after_run_id=page.after if _is_run_id(page.after) else "",
                limit=page.size + 1,
                takes_cut=True,
            )
        )
        own = [record for record in found.runs if record.workspace == workspace]
        shown, token = page.cut(own, lambda row: row.run.id, translate.run, is_cut=found.is_cut)
        return holding(pb.ListRunsResponse, runs=shown, next_page_token=token)

    async def GetRun(self, request: pb.GetRunRequest, context: RpcCall) -> pb.GetRunResponse:
        record = await self._reads.run(request.run_id) if _is_run_id(request.run_id) else None
        if record is None or record.workspace != caller().workspace:
            raise refusals.run_not_found(request.run_id)
        return holding(pb.GetRunResponse, run=translate.run(record))

    async def GetRunOutput(
        self, request: pb.GetRunOutputRequest, context: RpcCall
    ) -> AsyncIterator[pb.GetRunOutputResponse]:
        if not _is_run_id(request.run_id):
            raise refusals.run_not_found(request.run_id)
        async for data in self._reads.run_output(request.run_id, caller().workspace):
            yield pb.GetRunOutputResponse(data=data)


def _is_run_id(text: str) -> bool:
    execution_id, _, number = text.partition(".")
    return is_execution_id(execution_id) and number.isascii() and number.isdigit() and len(number) < 10
