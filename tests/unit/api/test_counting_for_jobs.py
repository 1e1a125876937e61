"""Callers count what a job would act on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from services.api.app import bulk_jobs
from services.api.app.bulk_jobs import BulkDesk
from services.api.app.ports import ExecutionPage, ExecutionQuery, ExecutionView
from services.api.rpc.filters import ExecutionFilter
from services.chassis.grpc.errors import Refusal

EVERYTHING = ExecutionFilter(())


class SlowReads:
    """A read of the executions ends when it is told to."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.begun = asyncio.Event()
        self.failure: Exception | None = None

    async def page(self, asked: ExecutionQuery) -> ExecutionPage:
        self.begun.set()
        await self.may_end.wait()
        if self.failure is not None:
            raise self.failure
        return ExecutionPage([ExecutionView("an id", asked.workspace, "RUNNING", 1)])


@pytest.fixture
def reads() -> SlowReads:
    return SlowReads()


@pytest.fixture
def desk(reads: SlowReads, monkeypatch: pytest.MonkeyPatch) -> BulkDesk:
    monkeypatch.setattr(bulk_jobs, "COUNT_SECONDS", 0.0)
    unused: Any = None
    executions: Any = reads
    return BulkDesk(unused, executions, unused, unused)


async def test_a_count_that_gets_no_turn_says_that_others_are_counting(desk: BulkDesk, reads: SlowReads) -> None:
    reads.may_end.set()
    assert (await desk.count("team", EVERYTHING)).matched == 1
    reads.may_end.clear()
    reads.begun.clear()
    going = asyncio.create_task(desk.count("team", EVERYTHING))
    await reads.begun.wait()
    with pytest.raises(Refusal, match="other counts are under way") as refused:
        await desk.count("team", EVERYTHING)
    assert refused.value.reason == "COUNTS_EXCEEDED"
    reads.may_end.set()
    assert (await going).matched == 1


async def test_a_read_that_takes_too_long_is_not_said_to_be_a_crowd(desk: BulkDesk, reads: SlowReads) -> None:
    reads.failure = TimeoutError("the read")
    reads.may_end.set()
    with pytest.raises(TimeoutError, match="the read"):
        await desk.count("team", EVERYTHING)


async def test_a_count_goes_on_behind_a_page_that_was_cut(
    desk: BulkDesk, reads: SlowReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def page(asked: ExecutionQuery) -> ExecutionPage:
        behind = int(asked.from_id or 0)
        found = [ExecutionView(str(number), asked.workspace, "RUNNING", 1) for number in range(behind + 1, behind + 4)]
        return ExecutionPage(found, is_cut=behind < 6)

    monkeypatch.setattr(reads, "page", page)
    count = await desk.count("team", EVERYTHING)
    assert (count.matched, count.is_cut, len(count.sample)) == (9, False, 9)
