"""The Protocols that the use cases of bulk jobs need."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from services.api.app.ports import Filter
from services.api.core.bulk_jobs import BulkJob, BulkOrder, BulkState, Tally
from services.chassis.identity.callers import Identity


class BulkJobs(Protocol):
    async def add(self, actor: Identity, job_id: str, order: BulkOrder, request_id: str, as_of: datetime) -> BulkJob:
        """The new job, or the one that the request_id has begun before. Raises a Refusal when that had other content,
        or when the workspace has too many running jobs."""
        ...

    async def get(self, workspace: str, job_id: str) -> BulkJob | None: ...

    async def page(self, workspace: str, before: str, limit: int) -> Sequence[BulkJob]:
        """Newest first. `before` is "" at the beginning."""
        ...

    async def stop(self, actor: Identity, job_id: str) -> BulkJob | None:
        """The job after a running one was told to stop. None: the workspace has no such job."""
        ...


class BulkLeases(Protocol):
    """The jobs, for the api that works on them. `add_page`, `at_place`, `advance` and `end` raise JobLost when another
    api has the job, or it has ended."""

    async def claim(self, holder: uuid.UUID, term_seconds: float, limit: int) -> Sequence[BulkJob]:
        """Take running jobs that no api holds, oldest first. Their leases end after `term_seconds`."""
        ...

    async def renew(self, holder: uuid.UUID, job_ids: Sequence[str], term_seconds: float) -> None: ...

    async def add_page(self, job: BulkJob, execution_ids: Sequence[str], *, is_last: bool, is_cut: bool) -> BulkJob:
        """Store the next executions that match."""
        ...

    async def newest_id(self, job: BulkJob) -> str:
        """The last execution that was stored; "" if there is none."""
        ...

    async def at_place(self, job: BulkJob) -> Sequence[str]:
        """Some executions of the job, in order, beginning with that of its place."""
        ...

    async def advance(self, job: BulkJob, tally: Tally) -> BulkJob: ...

    async def end(self, job: BulkJob, state: BulkState, message: str) -> None: ...

    async def release(self, job: BulkJob) -> None:
        """Let another api take it at once."""
        ...


class JobLost(Exception):
    """Another api works on the job, or it has ended."""


class BulkCommands(Protocol):
    def filter_of(self, job: BulkJob) -> Filter:
        """The executions of the job. Raises a Refusal if this api does not understand its filter."""
        ...

    async def give(self, job: BulkJob, execution_id: str) -> None:
        """Give the command of the job to an execution. Raises the Refusal with which it was answered."""
        ...
