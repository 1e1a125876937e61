"""What is asked of any coordinator: executions, runs and events as the journal has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from services.api.app.ports import ExecutionQuery
from services.api.peers.conditions import conditions_of
from services.api.peers.replicas import Replicas
from services.chassis.grpc.client import Channel
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from windlass.coordinator.v1 import reads_pb2, reads_pb2_grpc

# A record carries an input and an output of up to 256 KiB each, an answer 64 MiB.
IDS_PER_CALL: Final = 100
_UPGRADE_SECONDS: Final = 5.0


class CoordinatorReads:
    def __init__(self, peers: Replicas) -> None:
        self._peers = peers

    async def executions(self, execution_ids: Sequence[str]) -> Sequence[reads_pb2.ExecutionRecord]:
        found: list[reads_pb2.ExecutionRecord] = []
        for start in range(0, len(execution_ids), IDS_PER_CALL):
            request = reads_pb2.GetExecutionsRequest(
                execution_ids=execution_ids[start : start + IDS_PER_CALL]
            )
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

        async def invoke(channel: Channel, seconds: float) -> reads_pb2.ListExecutionsResponse:
            return await reads_pb2_grpc.ReadServiceStub(channel).ListExecutions(request, timeout=seconds)

        try:
            return (await self._peers.call(invoke)).executions
        except Refusal as refused:
            # Whoever asked is not at fault: the filter was found good here. An upgrade is under way.
            if refused.reason == "INVALID_REQUEST":
                told = "a coordinator of another version cannot apply this filter"
                raise DependencyUnavailable(self._peers.name, told, retry_after=_UPGRADE_SECONDS) from None
            raise

    async def runs(self, request: reads_pb2.ListRunsRequest) -> reads_pb2.ListRunsResponse:
        async def invoke(channel: Channel, seconds: float) -> reads_pb2.ListRunsResponse:
            return await reads_pb2_grpc.ReadServiceStub(channel).ListRuns(request, timeout=seconds)

        return await self._peers.call(invoke)

    async def run(self, run_id: str) -> reads_pb2.RunRecord | None:
        request = reads_pb2.GetRunRequest(run_id=run_id)

        async def invoke(channel: Channel, seconds: float) -> reads_pb2.GetRunResponse:
            return await reads_pb2_grpc.ReadServiceStub(channel).GetRun(request, timeout=seconds)

        response = await self._peers.call(invoke)
        return response.run if response.HasField("run") else None

    async def events(self, request: reads_pb2.ListEventsRequest) -> reads_pb2.ListEventsResponse:
        async def invoke(channel: Channel, seconds: float) -> reads_pb2.ListEventsResponse:
            return await reads_pb2_grpc.ReadServiceStub(channel).ListEvents(request, timeout=seconds)

        return await self._peers.call(invoke)

    async def modules(self, workspace: str) -> Sequence[str]:
        request = reads_pb2.ListModulesRequest(workspace=workspace)

        async def invoke(channel: Channel, seconds: float) -> reads_pb2.ListModulesResponse:
            return await reads_pb2_grpc.ReadServiceStub(channel).ListModules(request, timeout=seconds)

        return (await self._peers.call(invoke)).modules

    async def _get(self, request: reads_pb2.GetExecutionsRequest) -> reads_pb2.GetExecutionsResponse:
        async def invoke(channel: Channel, seconds: float) -> reads_pb2.GetExecutionsResponse:
            return await reads_pb2_grpc.ReadServiceStub(channel).GetExecutions(request, timeout=seconds)

        return await self._peers.call(invoke)
