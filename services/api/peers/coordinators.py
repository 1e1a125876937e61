"""Reads from any coordinator: executions, runs and events as the journal has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from services.api.app.ports import ExecutionQuery
from services.api.peers.conditions import conditions_of
from services.api.peers.replicas import Replicas
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from windlass.coordinator.v1 import reads_pb2
from windlass.coordinator.v1.reads_pb2_grpc import ReadServiceStub

# A record carries an input and an output of up to 256 KiB each; an answer has at most 64 MiB.
IDS_PER_CALL: Final = 100
_UPGRADE_SECONDS: Final = 5.0


class CoordinatorReads:
    def __init__(self, peers: Replicas) -> None:
        self._peers = peers

    async def executions(self, execution_ids: Sequence[str]) -> Sequence[reads_pb2.ExecutionRecord]:
        found: list[reads_pb2.ExecutionRecord] = []
        for start in range(0, len(execution_ids), IDS_PER_CALL):
            request = reads_pb2.GetExecutionsRequest(execution_ids=execution_ids[start : start + IDS_PER_CALL])
            found.extend((await self._get(request)).executions)
        return found

    async def execution_page(self, asked: ExecutionQuery) -> Sequence[reads_pb2.ExecutionRecord]:
        request = reads_pb2.ListExecutionsRequest(
            workspace=asked.workspace,
            conditions=conditions_of(asked.filters),
            from_execution_id=asked.from_id,
            ascending=asked.ascending,
            limit=asked.limit,
        )
        try:
            response = await self._peers.call(
                lambda channel, seconds: ReadServiceStub(channel).ListExecutions(request, timeout=seconds)
            )
        except Refusal as refused:
            # This api accepted the filter, so the coordinator has an older version: an upgrade is under way.
            if refused.reason == "INVALID_REQUEST":
                told = "a coordinator of another version cannot apply this filter"
                raise DependencyUnavailable(self._peers.name, told, retry_after=_UPGRADE_SECONDS) from None
            raise
        return response.executions

    async def runs(self, request: reads_pb2.ListRunsRequest) -> reads_pb2.ListRunsResponse:
        return await self._peers.call(
            lambda channel, seconds: ReadServiceStub(channel).ListRuns(request, timeout=seconds)
        )

    async def run(self, run_id: str) -> reads_pb2.RunRecord | None:
        request = reads_pb2.GetRunRequest(run_id=run_id)
        response = await self._peers.call(
            lambda channel, seconds: ReadServiceStub(channel).GetRun(request, timeout=seconds)
        )
        return response.run if response.HasField("run") else None

    async def events(self, request: reads_pb2.ListEventsRequest) -> reads_pb2.ListEventsResponse:
        return await self._peers.call(
            lambda channel, seconds: ReadServiceStub(channel).ListEvents(request, timeout=seconds)
        )

    async def modules(self, workspace: str) -> Sequence[str]:
        request = reads_pb2.ListModulesRequest(workspace=workspace)
        response = await self._peers.call(
            lambda channel, seconds: ReadServiceStub(channel).ListModules(request, timeout=seconds)
        )
        return response.modules

    async def _get(self, request: reads_pb2.GetExecutionsRequest) -> reads_pb2.GetExecutionsResponse:
        return await self._peers.call(
            lambda channel, seconds: ReadServiceStub(channel).GetExecutions(request, timeout=seconds)
        )
