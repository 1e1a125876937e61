"""Bulk jobs in PostgreSQL: what callers ask of them, and the leases of the apis that work on them.

The database's clock judges leases. Every change by a holder compares the epoch of its claim, so one that has lost the
job changes nothing, whenever its statement arrives.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import orjson
from sqlalchemy import Boolean, Double, Integer, Text, any_, bindparam, cast, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, insert

from services.api.app import refusals
from services.api.app.bulk_ports import JobLost
from services.api.core.bulk_jobs import JOBS_MAX, BulkAction, BulkAnswer, BulkJob, BulkOrder, BulkState, Tally
from services.api.store.audit import record
from services.api.store.tables import bulk_job_pages, bulk_jobs, uuid_of, workspaces
from services.chassis.identity.callers import Identity
from services.chassis.postgres.compiled import Composed, seconds
from services.chassis.postgres.connection import Connection
from services.chassis.postgres.database import Database
from services.chassis.process.crash import crash_point

# What a notification of the audit's channel names when an api may find work.
CHANGED: Final = "bulk_job:"
_ORDER: Final = BulkOrder._fields
_NAMES: Final = (
    *("job_id", "workspace", "caller", "as_of_time", "state", "matched", "is_counted", "is_cut", "message"),
    *("create_time", "stop_time", "end_time", "epoch", *_ORDER, "done", "refused", "failed", "samples"),
)
_COLUMNS: Final = tuple(bulk_jobs.c[name] for name in _NAMES)
_RUNNING: Final = bulk_jobs.c.state == "RUNNING"
_NONE: Final = uuid.UUID(int=0)
_NEWEST: Final = uuid.UUID(int=2**128 - 1)

_LOCK = Composed(
    select(workspaces.c.workspace).where(workspaces.c.workspace == bindparam("named")).with_for_update(key_share=True)
)
_SAME = Composed(
    select(*_COLUMNS).where(
        bulk_jobs.c.workspace == bindparam("named"),
        bulk_jobs.c.request_id == bindparam("same"),
        bulk_jobs.c.request_id != "",
    )
)
_COUNT = Composed(select(func.count()).where(bulk_jobs.c.workspace == bindparam("named"), _RUNNING))
_GIVEN = ("job_id", "workspace", "request_id", "caller", "as_of_time", *_ORDER)
_INSERT = Composed(insert(bulk_jobs).values({name: bindparam(name) for name in _GIVEN}).returning(*_COLUMNS))
_IS_NAMED = (bulk_jobs.c.workspace == bindparam("named"), bulk_jobs.c.job_id == bindparam("job"))
_GET = Composed(select(*_COLUMNS).where(*_IS_NAMED))
_PAGE = Composed(
    select(*_COLUMNS)
    .where(bulk_jobs.c.workspace == bindparam("named"), bulk_jobs.c.job_id < bindparam("before"))
    .order_by(bulk_jobs.c.job_id.desc())
    .limit(bindparam("limit"))
)
_STOP = Composed(
    update(bulk_jobs)
    .where(*_IS_NAMED, _RUNNING, bulk_jobs.c.stop_time.is_(None))
    .values(stop_time=func.now())
    .returning(bulk_jobs.c.job_id)
)

_TERM = seconds(bindparam("term", type_=Double))
_FREE = (
    select(bulk_jobs.c.job_id)
    .where(
        _RUNNING,
        or_(bulk_jobs.c.lease_time.is_(None), bulk_jobs.c.lease_time < func.now()),
        # A newer api may have other actions, and works on such jobs itself. To stop one, nothing has to be known of it.
        or_(bulk_jobs.c.action == any_(bindparam("actions", type_=ARRAY(Text))), bulk_jobs.c.stop_time.is_not(None)),
    )
    .order_by(bulk_jobs.c.job_id)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
    .cte("free")
)
_CLAIM = Composed(
    update(bulk_jobs)
    .where(bulk_jobs.c.job_id == _FREE.c.job_id)
    .values(holder=bindparam("claimant"), lease_time=func.now() + _TERM, epoch=bulk_jobs.c.epoch + 1)
    .returning(*_COLUMNS)
)
_RENEW = Composed(
    update(bulk_jobs)
    .where(
        bulk_jobs.c.job_id == any_(bindparam("jobs", type_=ARRAY(bulk_jobs.c.job_id.type))),
        bulk_jobs.c.holder == bindparam("claimant"),
        _RUNNING,
    )
    .values(lease_time=func.now() + _TERM)
)
_IS_HELD = (bulk_jobs.c.job_id == bindparam("job"), bulk_jobs.c.epoch == bindparam("held"), _RUNNING)
_COLLECTED = Composed(
    update(bulk_jobs)
    .where(*_IS_HELD, bulk_jobs.c.matched == bindparam("before", type_=Integer))
    .values(
        matched=bindparam("after", type_=Integer),
        is_counted=bindparam("is_last", type_=Boolean),
        is_cut=bindparam("cut", type_=Boolean),
    )
    .returning(*_COLUMNS)
)
_ADD_PAGE = Composed(
    insert(bulk_job_pages).values({column.name: bindparam(column.name) for column in bulk_job_pages.c})
)
_OF_JOB = bulk_job_pages.c.job_id == bindparam("job")
_LAST_PAGE = Composed(
    select(bulk_job_pages.c.execution_ids).where(_OF_JOB).order_by(bulk_job_pages.c.first_place.desc()).limit(1)
)
_PAGE_AT = Composed(
    select(bulk_job_pages.c.first_place, bulk_job_pages.c.execution_ids)
    .where(_OF_JOB, bulk_job_pages.c.first_place <= bindparam("place"))
    .order_by(bulk_job_pages.c.first_place.desc())
    .limit(1)
)
_ADVANCE = Composed(
    update(bulk_jobs)
    .where(*_IS_HELD)
    .values(
        done=bindparam("now_done", type_=Integer),
        failed=bindparam("now_failed", type_=Integer),
        refused=cast(bindparam("now_refused", type_=Text), JSONB),
        samples=cast(bindparam("now_samples", type_=Text), JSONB),
    )
    .returning(*_COLUMNS)
)
_END = Composed(
    update(bulk_jobs)
    .where(*_IS_HELD)
    .values(state=bindparam("outcome"), message=bindparam("told"), end_time=func.now(), holder=None, lease_time=None)
    .returning(bulk_jobs.c.job_id)
)
_DROP_PAGES = Composed(delete(bulk_job_pages).where(_OF_JOB))
_RELEASE = Composed(
    update(bulk_jobs).where(*_IS_HELD).values(holder=None, lease_time=None).returning(bulk_jobs.c.workspace)
)
_OLD = (
    select(bulk_jobs.c.job_id)
    .where(bulk_jobs.c.end_time < func.now() - seconds(bindparam("older_than")))
    .order_by(bulk_jobs.c.end_time)
    .limit(1_000)
    .cte("old")
)
_FORGET = Composed(delete(bulk_jobs).where(bulk_jobs.c.job_id == _OLD.c.job_id))


class PostgresBulkJobs:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, actor: Identity, job_id: str, order: BulkOrder, request_id: str, as_of: datetime) -> BulkJob:
        given = {
            **order._asdict(),
            "job_id": uuid.UUID(job_id),
            "workspace": actor.workspace,
            "request_id": request_id,
            "caller": actor.title,
            "as_of_time": as_of,
        }

        async def work(connection: Connection) -> BulkJob:
            # The lock makes the count exact, and orders two calls with one request_id.
            await connection.execute(*_LOCK(named=actor.workspace))
            same = await (await connection.execute(*_SAME(named=actor.workspace, same=request_id))).fetchone()
            if same is not None:
                return _same_job(_job(same), order, request_id)
            counted = await (await connection.execute(*_COUNT(named=actor.workspace))).fetchone()
            if counted is None or counted[0] >= JOBS_MAX:
                raise refusals.bulk_jobs_exceeded(actor.workspace, JOBS_MAX)
            row = await (await connection.execute(*_INSERT(**given))).fetchone()
            assert row is not None
            details = {"action": str(order.action), "filter": order.filter}
            await record(connection, actor, "BulkExecutions", job_id, details, CHANGED)
            crash_point("api.bulk.before_commit")
            return _job(row)

        return await self._database.transaction(work)

    async def get(self, workspace: str, job_id: str) -> BulkJob | None:
        row = await self._database.fetch_one(*_GET(named=workspace, job=uuid_of(job_id) or _NONE))
        return None if row is None else _job(row)

    async def page(self, workspace: str, before: str, limit: int) -> Sequence[BulkJob]:
        place = uuid_of(before) or _NEWEST
        return [_job(row) for row in await self._database.fetch(*_PAGE(named=workspace, before=place, limit=limit))]

    async def stop(self, actor: Identity, job_id: str) -> BulkJob | None:
        meant = {"named": actor.workspace, "job": uuid_of(job_id) or _NONE}

        async def work(connection: Connection) -> BulkJob | None:
            stopped = await (await connection.execute(*_STOP(**meant))).fetchone()
            if stopped is not None:
                await record(connection, actor, "StopBulkJob", job_id, {}, CHANGED)
                crash_point("api.bulk.before_commit")
            row = await (await connection.execute(*_GET(**meant))).fetchone()
            return None if row is None else _job(row)

        return await self._database.transaction(work)

    async def claim(self, holder: uuid.UUID, term_seconds: float, limit: int) -> Sequence[BulkJob]:
        known = [each.value for each in BulkAction]
        claim = _CLAIM(claimant=holder, term=term_seconds, limit=limit, actions=known)
        rows = await self._database.fetch(*claim)
        return [_job(row) for row in rows]

    async def renew(self, holder: uuid.UUID, job_ids: Sequence[str], term_seconds: float) -> None:
        jobs = [uuid.UUID(job_id) for job_id in job_ids]
        await self._database.execute(*_RENEW(claimant=holder, jobs=jobs, term=term_seconds))

    async def add_page(self, job: BulkJob, execution_ids: Sequence[str], *, is_last: bool, is_cut: bool) -> BulkJob:
        values = {"before": job.matched, "after": job.matched + len(execution_ids), "is_last": is_last, "cut": is_cut}

        async def work(connection: Connection) -> BulkJob:
            row = await (await connection.execute(*_COLLECTED(**_held(job), **values))).fetchone()
            if row is None:
                raise JobLost(job.job_id)
            if execution_ids:
                ids = [uuid.UUID(each) for each in execution_ids]
                page = _ADD_PAGE(job_id=uuid.UUID(job.job_id), first_place=job.matched, execution_ids=ids)
                await connection.execute(*page)
            return _job(row)

        return await self._database.transaction(work)

    async def newest_id(self, job: BulkJob) -> str:
        row = await self._database.fetch_one(*_LAST_PAGE(job=uuid.UUID(job.job_id)))
        return "" if row is None else str(row[0][-1])

    async def at_place(self, job: BulkJob) -> Sequence[str]:
        place = job.tally.place
        row = await self._database.fetch_one(*_PAGE_AT(job=uuid.UUID(job.job_id), place=place))
        if row is None:
            raise JobLost(job.job_id)
        first, ids = row
        return [str(each) for each in ids[place - first :]]

    async def advance(self, job: BulkJob, tally: Tally) -> BulkJob:
        values = {
            "now_done": tally.done,
            "now_failed": tally.failed,
            "now_refused": orjson.dumps(tally.refused).decode(),
            "now_samples": orjson.dumps(list(map(list, tally.samples))).decode(),
        }
        row = await self._database.fetch_one(*_ADVANCE(**_held(job), **values))
        if row is None:
            raise JobLost(job.job_id)
        return _job(row)

    async def end(self, job: BulkJob, state: BulkState, message: str) -> None:
        async def work(connection: Connection) -> None:
            cursor = await connection.execute(*_END(**_held(job), outcome=state.value, told=message))
            if await cursor.fetchone() is None:
                raise JobLost(job.job_id)
            await connection.execute(*_DROP_PAGES(job=uuid.UUID(job.job_id)))

        await self._database.transaction(work)

    async def release(self, job: BulkJob) -> None:
        """The lease of a job that is lost already stays as it is."""
        await self._database.fetch_one(*_RELEASE(**_held(job)))


async def forget(database: Database, older_than_seconds: float) -> int:
    """Delete some jobs that ended longer ago; returns how many."""
    return await database.execute(*_FORGET(older_than=older_than_seconds))


def _held(job: BulkJob) -> dict[str, Any]:
    return {"job": uuid.UUID(job.job_id), "held": job.epoch}


def _same_job(job: BulkJob, order: BulkOrder, request_id: str) -> BulkJob:
    if job.order != order:
        raise refusals.bulk_request_id_reused(request_id, job.job_id)
    return job


def _job(row: tuple[Any, ...]) -> BulkJob:
    values = dict(zip(_NAMES, row, strict=True))
    order = BulkOrder(**{name: values.pop(name) for name in _ORDER})
    order = order._replace(input_overrides=bytes(order.input_overrides))
    samples = tuple(BulkAnswer(*each) for each in values.pop("samples"))
    tally = Tally(values.pop("done"), values.pop("refused"), values.pop("failed"), samples)
    values |= {"job_id": str(values["job_id"]), "state": BulkState(values["state"])}
    return BulkJob(order=order, tally=tally, **values)
