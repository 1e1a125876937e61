"""Bulk jobs and the leases of the apis that work on them, on a real PostgreSQL."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import NamedTuple

import psycopg
import pytest
import pytest_asyncio

from services.api.app.bulk_ports import JobLost
from services.api.app.identifiers import Identifiers
from services.api.core.bulk_jobs import JOBS_MAX, BulkAction, BulkAnswer, BulkJob, BulkOrder, BulkState, Tally, outcome
from services.api.rpc.bulk_jobs import shown
from services.api.store.bulk_jobs import PostgresBulkJobs, forget
from services.api.store.workspaces import PostgresWorkspaces
from services.chassis.grpc.errors import Refusal
from services.chassis.identity.callers import CallerKind, Identity
from services.chassis.postgres.database import Database
from services.chassis.process.clock import SystemClock
from tests.support.postgres import Database as MadeDatabase

SYSTEM = Identity(CallerKind.SYSTEM, "system-key")
TEAM = Identity(CallerKind.MEMBER, "team-key", "team", "WORKFLOW", "of the team")
RIVAL = Identity(CallerKind.MEMBER, "rival-key", "rival", "WORKFLOW", "of the rival")
ORDER = BulkOrder(BulkAction.PAUSE, "state = RUNNING", "look first", "", b"")
NOW = datetime(2026, 11, 1, tzinfo=UTC)
IDENTIFIERS = Identifiers(SystemClock())
ONE, OTHER = uuid.uuid4(), uuid.uuid4()
# No test lasts so long. A lease of 0 seconds has ended at the next statement.
LONG = 600.0


class Jobs(NamedTuple):
    store: PostgresBulkJobs
    database: Database
    url: str

    async def begin(self, actor: Identity = TEAM, order: BulkOrder = ORDER, request_id: str = "") -> BulkJob:
        return await self.store.add(actor, IDENTIFIERS.mint(), order, request_id, NOW)

    async def claimed(self, holder: uuid.UUID = ONE, term: float = LONG) -> BulkJob:
        (job,) = await self.store.claim(holder, term, 10)
        return job

    async def rows(self, sql: str) -> list[tuple[object, ...]]:
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            return await (await connection.execute(sql.encode())).fetchall()


@pytest_asyncio.fixture(loop_scope="session")
async def jobs(database: MadeDatabase) -> AsyncIterator[Jobs]:
    """No jobs, and the workspaces `team` and `rival`."""
    url = database.url("api")
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(
            "TRUNCATE workspaces, api_keys, workflows, workflow_versions, audit, bulk_jobs, bulk_job_pages"
        )
    pool = Database(url, name="test", connections=4)
    for name in ("team", "rival"):
        await PostgresWorkspaces(pool).add(SYSTEM, name, {"tier": 2, "executions_max": 0, "queued_max": 0})
    yield Jobs(PostgresBulkJobs(pool), pool, url)
    await pool.close()


def ids(count: int) -> list[str]:
    return [IDENTIFIERS.mint() for _ in range(count)]


async def test_a_job_is_found_as_it_was_asked_for_with_the_record_of_who_asked(jobs: Jobs) -> None:
    order = BulkOrder(BulkAction.RETRY, "state = FAILED", "", "node", b'{"node":{"n":1}}')
    made = await jobs.begin(order=order)
    assert made == await jobs.store.get("team", made.job_id)
    assert (made.order, made.caller, made.as_of_time) == (order, "of the team", NOW)
    assert (made.state, made.matched, made.is_counted, made.tally.place) == (BulkState.RUNNING, 0, False, 0)
    assert await jobs.store.get("rival", made.job_id) is None
    assert await jobs.store.get("team", "no id") is None
    audit = "SELECT workspace, actor, subject FROM audit WHERE action = 'BulkExecutions'"
    assert await jobs.rows(audit) == [("team", "team-key", made.job_id)]


async def test_a_request_id_begins_one_job_of_its_workspace(jobs: Jobs) -> None:
    first = await jobs.begin(request_id="one")
    assert (await jobs.begin(request_id="one")).job_id == first.job_id
    assert (await jobs.begin(RIVAL, request_id="one")).job_id != first.job_id
    with pytest.raises(Refusal) as refused:
        await jobs.begin(order=ORDER._replace(reason="other"), request_id="one")
    assert refused.value.reason == "REQUEST_ID_REUSED"
    assert len(await jobs.rows("SELECT FROM audit WHERE action = 'BulkExecutions'")) == 2


async def test_a_workspace_has_few_running_jobs(jobs: Jobs) -> None:
    made = [await jobs.begin(request_id=str(number)) for number in range(JOBS_MAX)]
    with pytest.raises(Refusal) as refused:
        await jobs.begin()
    assert refused.value.reason == "BULK_JOBS_EXCEEDED"
    assert await jobs.begin(request_id="0") == made[0]
    await jobs.begin(RIVAL)
    (held, *_) = await jobs.store.claim(ONE, LONG, 1)
    await jobs.store.end(held, BulkState.DONE, "")
    await jobs.begin()


async def test_a_job_has_one_holder_until_its_lease_ends(jobs: Jobs) -> None:
    await jobs.begin()
    first = await jobs.claimed(ONE, LONG)
    assert await jobs.store.claim(OTHER, LONG, 10) == []
    await jobs.store.renew(ONE, [first.job_id], 0.0)
    second = await jobs.claimed(OTHER, LONG)
    assert second.epoch > first.epoch
    # The renewal of the one that has lost it changes nothing.
    await jobs.store.renew(ONE, [first.job_id], 0.0)
    assert await jobs.store.claim(ONE, LONG, 10) == []


@contextlib.asynccontextmanager
async def of_a_newer_version(jobs: Jobs) -> AsyncIterator[BulkJob]:
    """A job whose action this version does not know."""
    newer = await jobs.begin()
    check = "CHECK (action IN ('CANCEL', 'PAUSE', 'RESUME', 'RETRY')) NOT VALID"
    async with await psycopg.AsyncConnection.connect(jobs.url, autocommit=True) as connection:
        await connection.execute("ALTER TABLE bulk_jobs DROP CONSTRAINT bulk_jobs_action_check")
        try:
            await connection.execute("UPDATE bulk_jobs SET action = 'ARCHIVE' WHERE job_id = %s", [newer.job_id])
            yield newer
        finally:
            await connection.execute(f"ALTER TABLE bulk_jobs ADD CONSTRAINT bulk_jobs_action_check {check}".encode())


async def test_a_job_with_the_action_of_a_newer_version_is_left_to_that_version(jobs: Jobs) -> None:
    async with of_a_newer_version(jobs):
        known = await jobs.begin()
        assert (await jobs.claimed()).job_id == known.job_id


async def test_a_job_with_the_action_of_a_newer_version_is_shown_and_listed(jobs: Jobs) -> None:
    async with of_a_newer_version(jobs) as newer:
        found = await jobs.store.get("team", newer.job_id)
        assert found is not None
        assert [found] == list(await jobs.store.page("team", "", 10))
        job = shown(found)
        assert (job.id, job.action, job.state) == (newer.job_id, job.ACTION_UNSPECIFIED, job.RUNNING)
        assert "ARCHIVE" in job.message


async def test_a_job_with_the_action_of_a_newer_version_can_be_stopped_here(jobs: Jobs) -> None:
    """Otherwise it would count as running until the newer version is there again."""
    async with of_a_newer_version(jobs) as newer:
        stopped = await jobs.store.stop(TEAM, newer.job_id)
        assert stopped is not None
        claimed = await jobs.claimed()
        assert (claimed.job_id, outcome(claimed)) == (newer.job_id, BulkState.STOPPED)


async def test_one_that_has_lost_the_job_changes_nothing(jobs: Jobs) -> None:
    await jobs.begin()
    first = await jobs.claimed(ONE, 0.0)
    second = await jobs.claimed(OTHER, LONG)
    for attempt in (
        jobs.store.add_page(first, ids(2), is_last=True, is_cut=False),
        jobs.store.advance(first, Tally(1, {}, 0, ())),
        jobs.store.end(first, BulkState.FAILED, "lost"),
    ):
        with pytest.raises(JobLost):
            await attempt
    await jobs.store.release(first)
    assert await jobs.store.get("team", second.job_id) == second
    assert await jobs.store.claim(ONE, LONG, 10) == []


async def test_another_holder_goes_on_from_the_stored_place(jobs: Jobs) -> None:
    await jobs.begin()
    job = await jobs.claimed(ONE, 0.0)
    assert await jobs.store.newest_id(job) == ""
    first, second = ids(3), ids(2)
    job = await jobs.store.add_page(job, first, is_last=False, is_cut=False)
    assert (job.matched, job.is_counted, await jobs.store.newest_id(job)) == (3, False, first[-1])
    taken = await jobs.claimed(OTHER, 0.0)
    assert (taken.matched, await jobs.store.newest_id(taken)) == (3, first[-1])
    taken = await jobs.store.add_page(taken, second, is_last=True, is_cut=True)
    assert (taken.matched, taken.is_counted, taken.is_cut) == (5, True, True)
    sample = BulkAnswer(first[1], "EXECUTION_FINAL", "it has ended")
    tally = Tally(1, {"EXECUTION_FINAL": 1}, 0, (sample,))
    assert list(await jobs.store.at_place(taken)) == first
    await jobs.store.advance(taken, tally)
    again = await jobs.claimed(ONE)
    assert again.tally == tally
    assert list(await jobs.store.at_place(again)) == first[2:]
    again = await jobs.store.advance(again, tally._replace(done=3))
    assert list(await jobs.store.at_place(again)) == second[1:]


async def test_a_page_that_was_stored_is_not_stored_again(jobs: Jobs) -> None:
    """The answer to its commit was lost."""
    await jobs.begin()
    job = await jobs.claimed()
    await jobs.store.add_page(job, ids(2), is_last=False, is_cut=False)
    with pytest.raises(JobLost):
        await jobs.store.add_page(job, ids(2), is_last=False, is_cut=False)
    assert await jobs.rows("SELECT matched FROM bulk_jobs") == [(2,)]


async def test_a_job_that_was_handed_on_is_free_at_once(jobs: Jobs) -> None:
    await jobs.begin()
    await jobs.store.release(await jobs.claimed(ONE, LONG))
    await jobs.claimed(OTHER, LONG)


async def test_a_stop_is_seen_by_the_holder_and_recorded_once(jobs: Jobs) -> None:
    made = await jobs.begin()
    job = await jobs.store.add_page(await jobs.claimed(), ids(2), is_last=True, is_cut=False)
    stopped = await jobs.store.stop(TEAM, made.job_id)
    assert stopped is not None
    assert stopped.stop_time is not None
    assert await jobs.store.stop(TEAM, made.job_id) == stopped
    assert await jobs.store.stop(RIVAL, made.job_id) is None
    seen = await jobs.store.advance(job, Tally(1, {}, 0, ()))
    assert seen.stop_time == stopped.stop_time
    assert len(await jobs.rows("SELECT FROM audit WHERE action = 'StopBulkJob'")) == 1


async def test_an_ended_job_keeps_its_counts_and_not_its_executions_and_is_forgotten_later(jobs: Jobs) -> None:
    made = await jobs.begin()
    job = await jobs.store.add_page(await jobs.claimed(), ids(2), is_last=True, is_cut=False)
    job = await jobs.store.advance(job, Tally(2, {}, 0, ()))
    await jobs.store.end(job, BulkState.DONE, "")
    found = await jobs.store.get("team", made.job_id)
    assert found is not None
    assert (found.state, found.tally.done, found.end_time is None) == (BulkState.DONE, 2, False)
    assert await jobs.rows("SELECT FROM bulk_job_pages") == []
    with pytest.raises(JobLost):
        await jobs.store.end(job, BulkState.FAILED, "again")
    running = await jobs.begin()
    assert await forget(jobs.database, LONG) == 0
    assert await forget(jobs.database, 0.0) == 1
    assert [each.job_id for each in await jobs.store.page("team", "", 10)] == [running.job_id]


async def test_jobs_are_listed_newest_first(jobs: Jobs) -> None:
    made = [(await jobs.begin()).job_id for _ in range(3)]
    assert [each.job_id for each in await jobs.store.page("team", "", 2)] == [made[2], made[1]]
    assert [each.job_id for each in await jobs.store.page("team", made[1], 2)] == [made[0]]
    assert list(await jobs.store.page("rival", "", 2)) == []
