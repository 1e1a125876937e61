"""Works on bulk jobs: finds their executions, and gives each of them the command.

Any api may take any job. It holds a lease on the job, which it renews; when it dies, another one goes on from the place
that was stored last. A piece of the job that was given but not stored is given once more, under the same message ids,
so nothing is done twice. The leases only keep two apis from doing the same work at once; nothing depends on them.

A job must not harm others. Each workspace gives so many commands in a second at each api, and has a few of the places
for commands that are under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from services.api.app.bulk_jobs import query
from services.api.app.bulk_ports import BulkCommands, BulkLeases, JobLost
from services.api.app.executions import Executions
from services.api.app.ports import PAGE_SIZE_MAX
from services.api.core.bulk_jobs import (
    AWAY,
    EXECUTIONS_MAX,
    PIECE_SECONDS,
    BulkAnswer,
    BulkJob,
    BulkState,
    counted,
    next_turn,
    outcome,
    piece_size,
    reached,
)
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.identity.callers import CallerKind, Identity, set_caller
from services.chassis.process.backoff import Backoff
from services.chassis.process.batcher import Level
from services.chassis.process.clock import Clock
from services.chassis.process.crash import crash_point
from services.chassis.process.fair_line import FairLine, NoTurn
from services.chassis.telemetry.logs import logger

log = logger(__name__)
Result = TypeVar("Result")

TERM_SECONDS: Final = 10.0
_RENEWALS_PER_TERM: Final = 4
_POLL_SECONDS: Final = 1.0
# Jobs that one api works on. Each has one page of ids in memory.
_JOBS_MAX: Final = 100
# Commands that are under way: of all workspaces, and of each.
_PLACES: Final = 16
_PLACES_OF_EACH: Final = 8
# Longer than a command takes, whatever is away.
_TURN_SECONDS: Final = 300.0
# A step is tried again while something is away. Then the execution counts as failed, or the job if it is collecting.
_TRIES: Final = 20
_TRY_AGAIN_SECONDS: Final = 5.0


class _Turns:
    """The time at which a workspace gave its last command."""

    def __init__(self) -> None:
        self.last: float | None = None


class BulkWorker:
    def __init__(
        self,
        leases: BulkLeases,
        executions: Executions,
        commands: BulkCommands,
        changed: Level,
        clock: Clock,
        *,
        per_second: float,
        lease_scale: float,
    ) -> None:
        self._leases = leases
        self._executions = executions
        self._commands = commands
        self._changed = changed
        self._clock = clock
        self._per_second = per_second
        self._term_seconds = TERM_SECONDS * lease_scale
        self._holder = uuid.uuid4()
        self._line = FairLine(_PLACES, places_of_each=_PLACES_OF_EACH)
        # Each is kept by the jobs of the workspace.
        self._turns: WeakValueDictionary[str, _Turns] = WeakValueDictionary()
        self._at_work: dict[str, asyncio.Task[None]] = {}
        # Commands and reads of executions.
        self._under_way: set[asyncio.Task[Any]] = set()
        self._draining = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._renew())
            while True:
                for job in await self._claimed():
                    task = group.create_task(self._work(job), name=f"bulk job {job.job_id}")
                    self._at_work[job.job_id] = task
                await self._changed.wait(_POLL_SECONDS)

    async def drain(self, seconds: float) -> None:
        """Hand all jobs on. What is under way is not awaited, because whoever goes on does it again."""
        self._draining.set()
        for task in self._under_way:
            task.cancel()
        if self._at_work:
            await asyncio.wait(self._at_work.values(), timeout=seconds)

    async def _claimed(self) -> Sequence[BulkJob]:
        room = _JOBS_MAX - len(self._at_work)
        if self._draining.is_set() or room <= 0:
            return ()
        try:
            claimed = await self._leases.claim(self._holder, self._term_seconds, room)
        except DependencyUnavailable as away:
            log.info("bulk jobs wait for the database", error=str(away))
            return ()
        # This api had lost the lease of a job that it is still at. It will notice that; the job is free again soon.
        return [job for job in claimed if job.job_id not in self._at_work]

    async def _renew(self) -> None:
        while True:
            await self._clock.sleep(self._term_seconds / _RENEWALS_PER_TERM)
            try:
                if self._at_work:
                    await self._leases.renew(self._holder, list(self._at_work), self._term_seconds)
            except DependencyUnavailable as away:
                log.info("leases of bulk jobs cannot be renewed now", error=str(away))

    async def _work(self, job: BulkJob) -> None:
        # What the job asks of other services takes the places of its workspace (peers/replicas.py).
        set_caller(Identity(CallerKind.MEMBER, f"job:{job.job_id}", job.workspace, title=job.caller))
        try:
            await self._carry_out(job)
        except JobLost:
            log.info("another api works on the bulk job, or it has ended", job=job.job_id)
        except DependencyUnavailable as away:
            # Whoever takes the job when its lease has ended reads what is stored.
            log.info("a bulk job waits for the database", job=job.job_id, error=str(away))
        finally:
            self._at_work.pop(job.job_id, None)
            self._changed.set()

    async def _carry_out(self, job: BulkJob) -> None:
        log.info("this api works on a bulk job", job=job.job_id, epoch=job.epoch, place=job.tally.place)
        try:
            after = await self._steps(job)
        except Refusal as refused:
            await self._leases.end(job, BulkState.FAILED, f"{refused.reason}: {refused}")
        except (JobLost, DependencyUnavailable):
            raise
        except Exception as failure:
            # A bug in one job must not harm the others.
            log.error("a bulk job failed", job=job.job_id, exc_info=failure)
            await self._leases.end(job, BulkState.FAILED, "INTERNAL: the log of the api has details")
        else:
            if (state := outcome(after)) is None:
                await self._leases.release(after)
                return
            crash_point("api.bulk.before_end")
            await self._leases.end(after, state, "")

    async def _steps(self, job: BulkJob) -> BulkJob:
        """The job after its last step, or after the present one if this api is stopping."""
        turns = self._turns.setdefault(job.workspace, _Turns())
        backoff, tries = Backoff(first=0.2, cap=_TRY_AGAIN_SECONDS), 0
        while outcome(job) is None and not self._draining.is_set():
            try:
                job = await (self._given(job, turns, tries) if job.is_counted else self._collected(job))
                tries = 0
                backoff.reset()
            except DependencyUnavailable as away:
                if tries == _TRIES and not job.is_counted:
                    raise Refusal(AWAY, str(away)) from None
                tries = min(tries + 1, _TRIES)
                await self._pause(backoff.next())
        return job

    async def _collected(self, job: BulkJob) -> BulkJob:
        """The job with one more page of executions."""
        filter_, from_id = self._commands.filter_of(job), await self._leases.newest_id(job)
        read = self._cancellable(self._executions.page(query(job.workspace, filter_, from_id)))
        await asyncio.wait([read])
        if read.cancelled():
            return job
        found = read.result()
        page = found.executions[:PAGE_SIZE_MAX]
        room = EXECUTIONS_MAX - job.matched
        is_cut = len(page) > room
        ids = [execution.id for execution in page[:room]]
        is_last = is_cut or (len(page) < PAGE_SIZE_MAX and not found.is_cut)
        after = await self._leases.add_page(job, ids, is_last=is_last, is_cut=is_cut)
        crash_point("api.bulk.after_collect")
        return after

    async def _given(self, job: BulkJob, turns: _Turns, tries: int) -> BulkJob:
        """The job after one more piece, or as much of it as could be given."""
        ids = (await self._leases.at_place(job))[: piece_size(self._per_second)]
        tasks: list[asyncio.Task[BulkAnswer | None]] = []
        end = self._clock.monotonic() + PIECE_SECONDS
        async with asyncio.TaskGroup() as group:
            for execution_id in ids:
                await self._await_turn(turns)
                # The first one is given however long it waits, so that every piece comes further.
                begin_by = end if tasks else math.inf
                tasks.append(self._cancellable(self._answer(job, execution_id, begin_by), group))
        told = [None if task.cancelled() else task.result() for task in tasks]
        answers = reached(told, is_last_try=tries == _TRIES)
        crash_point("api.bulk.before_advance")
        # Also without an answer, because it tells whether the job is to stop.
        after = await self._leases.advance(job, counted(job.tally, answers))
        crash_point("api.bulk.after_advance")
        if not answers and outcome(after) is None and not self._draining.is_set():
            raise DependencyUnavailable("what the next execution of a bulk job needs")
        return after

    def _cancellable(
        self, work: Coroutine[Any, Any, Result], group: asyncio.TaskGroup | None = None
    ) -> asyncio.Task[Result]:
        """A task that ends when this api begins to stop."""
        task = asyncio.create_task(work) if group is None else group.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _answer(self, job: BulkJob, execution_id: str, begin_by: float) -> BulkAnswer | None:
        """None: the piece was over, or this api began to stop, before the turn of the execution came."""
        try:
            async with self._line.turn(job.workspace, _TURN_SECONDS):
                if self._draining.is_set() or self._clock.monotonic() >= begin_by:
                    return None
                await self._commands.give(job, execution_id)
        except Refusal as refused:
            return BulkAnswer(execution_id, refused.reason, str(refused))
        except (DependencyUnavailable, NoTurn) as away:
            return BulkAnswer(execution_id, AWAY, str(away))
        return BulkAnswer(execution_id)

    async def _await_turn(self, turns: _Turns) -> None:
        now = self._clock.monotonic()
        turns.last = next_turn(turns.last, now, self._per_second)
        await self._pause(turns.last - now)

    async def _pause(self, seconds: float) -> None:
        """Shorter when this api is to stop."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._draining.wait()
