"""Coordinators cut the pages of lists of runs when the runs are large."""

from __future__ import annotations

from typing import Any

import orjson

from services.api.rpc.runs import RunServicer
from services.chassis.identity.callers import CallerKind, Identity, set_caller
from tests.support.probe import INLINE_TURNS, turns_during
from windlass.api.v1 import runs_pb2
from windlass.coordinator.v1 import reads_pb2


class CuttingReads:
    """Ten runs. A caller that understands cut pages gets one at a time."""

    async def runs(self, request: reads_pb2.ListRunsRequest) -> reads_pb2.ListRunsResponse:
        after = int(request.after_run_id.rpartition(".")[2] or 0)
        numbers = range(after + 1, 11)[: 1 if request.takes_cut else request.limit]
        is_cut = request.takes_cut and after + 1 < 10
        response = reads_pb2.ListRunsResponse(is_cut=is_cut)
        for number in numbers:
            response.runs.add(workspace="team").run.id = f"01a1ef02-cd5c-7fc1-ac68-{0:012x}.{number}"
        return response


async def test_page_that_was_cut_goes_on() -> None:
    set_caller(Identity(CallerKind.MEMBER, "key", "team", "READER"))
    reads: Any = CuttingReads()
    nothing: Any = None
    request = runs_pb2.ListRunsRequest(page_size=5)
    pages: list[int] = []
    while not pages or request.page_token:
        answer = await RunServicer(nothing, reads, nothing).ListRuns(request, nothing)
        pages.append(len(answer.runs))
        request.page_token = answer.next_page_token
    assert pages == [1] * 10


class LargeReads:
    """Runs with large outputs."""

    async def runs(self, request: reads_pb2.ListRunsRequest) -> reads_pb2.ListRunsResponse:
        output = orjson.dumps([0] * 20_000)
        records = [reads_pb2.RunRecord(workspace="team", output=output) for _ in range(3)]
        return reads_pb2.ListRunsResponse(runs=records)

    async def run(self, run_id: str) -> reads_pb2.RunRecord:
        return (await self.runs(reads_pb2.ListRunsRequest())).runs[0]


async def test_others_are_served_while_large_runs_are_shown() -> None:
    set_caller(Identity(CallerKind.MEMBER, "key", "team", "READER"))
    reads: Any = LargeReads()
    nothing: Any = None
    runs = RunServicer(nothing, reads, nothing)
    listed, turns = await turns_during(runs.ListRuns(runs_pb2.ListRunsRequest(), nothing))
    assert [len(run.output.list_value) for run in listed.runs] == [20_000] * 3
    assert turns > INLINE_TURNS
    run_id = f"01a1ef02-cd5c-7fc1-ac68-{0:012x}.1"
    got, turns = await turns_during(runs.GetRun(runs_pb2.GetRunRequest(run_id=run_id), nothing))
    assert len(got.run.output.list_value) == 20_000
    assert turns > INLINE_TURNS
