"""What callers ask of bulk jobs: to begin one, to count what it would act on, to see it, to stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from services.api.app import ports, refusals
from services.api.app.bulk_ports import BulkJobs
from services.api.app.executions import Executions
from services.api.app.identifiers import Identifiers
from services.api.core.bulk_jobs import EXECUTIONS_MAX, BulkJob, BulkOrder, BulkState
from services.chassis.identity.callers import Identity
from services.chassis.process.clock import Clock
from services.chassis.process.fair_line import FairLine, NoTurn

SAMPLE: Final = 10
# To count is to read a page of executions after the other.
_COUNTS_AT_ONCE: Final = 2
COUNT_SECONDS: Final = 10.0
# How long a caller that stops a job waits for its end.
STOP_SECONDS: Final = 3.0
_LOOK_SECONDS: Final = 0.1


class Count(NamedTuple):
    matched: int
    # More than that match.
    is_cut: bool
    sample: Sequence[ports.ExecutionView]


class BulkDesk:
    def __init__(self, jobs: BulkJobs, executions: Executions, identifiers: Identifiers, clock: Clock) -> None:
        self._jobs = jobs
        self._executions = executions
        self._identifiers = identifiers
        self._clock = clock
        self._counting = FairLine(_COUNTS_AT_ONCE)

    async def begin(self, actor: Identity, order: BulkOrder, request_id: str) -> tuple[BulkJob, bool]:
        """The job, and whether an earlier call with this request_id began it."""
        job_id = self._identifiers.mint()
        job = await self._jobs.add(actor, job_id, order, request_id, self._clock.now())
        return job, job.job_id != job_id

    async def count(self, workspace: str, filter_: ports.Filter) -> Count:
        """The executions that match now."""
        try:
            async with self._counting.turn(workspace, COUNT_SECONDS):
                return await self._counted(workspace, filter_)
        except NoTurn:
            raise refusals.counts_exceeded(COUNT_SECONDS) from None

    async def _counted(self, workspace: str, filter_: ports.Filter) -> Count:
        matched, sample, from_id = 0, list[ports.ExecutionView](), ""
        while matched <= EXECUTIONS_MAX:
            found = await self._executions.page(query(workspace, filter_, from_id))
            page = found.executions[: ports.PAGE_SIZE_MAX]
            matched += len(page)
            sample += page[: SAMPLE - len(sample)]
            if len(page) < ports.PAGE_SIZE_MAX and not found.is_cut:
                break
            from_id = page[-1].id
        return Count(min(matched, EXECUTIONS_MAX), matched > EXECUTIONS_MAX, sample)

    async def find(self, workspace: str, job_id: str) -> BulkJob:
        job = await self._jobs.get(workspace, job_id)
        if job is None:
            raise refusals.bulk_job_not_found(job_id)
        return job

    async def page(self, workspace: str, before: str, limit: int) -> Sequence[BulkJob]:
        return await self._jobs.page(workspace, before, limit)

    async def stop(self, actor: Identity, job_id: str) -> BulkJob:
        """The job once it has stopped, or as it is when it does not stop in time."""
        job = await self._jobs.stop(actor, job_id)
        if job is None:
            raise refusals.bulk_job_not_found(job_id)
        end = self._clock.monotonic() + STOP_SECONDS
        while job.state is BulkState.RUNNING and self._clock.monotonic() < end:
            await asyncio.sleep(_LOOK_SECONDS)
            job = await self.find(actor.workspace, job_id)
        if job.state in (BulkState.DONE, BulkState.FAILED):
            raise refusals.bulk_job_ended(job_id, job.state.value)
        return job


def query(workspace: str, filter_: ports.Filter, from_id: str) -> ports.ExecutionQuery:
    """A page of the executions that match, oldest first. It may have more than its limit, or fewer if it is cut."""
    return ports.ExecutionQuery(workspace, filter_, from_id, ascending=True, limit=ports.PAGE_SIZE_MAX)
