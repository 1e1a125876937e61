"""A batch as one transaction in one round trip, on a connection that only the admission loop uses.

Hazard: after `CommitUnknown` nobody knows whether the batch was committed. Repeating it is safe: new starts are
recognised by their ids, reports by the rows that they left, and app/poll_loop.py finds grants that were not sent.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg

from services.chassis.postgres.arrays import Array, BigInts, Bytes, Ints, Texts, Times
from services.chassis.postgres.connection import BY_INDEX, PgConnection, is_damage, is_of_values
from services.chassis.postgres.raw_pipeline import HotStatement, Rows
from services.chassis.process.crash import crash_point
from services.dispatcher.app.ports import Unstorable
from services.dispatcher.core.batch import AdmissionBatch, BatchResult
from services.dispatcher.core.composing import reach
from services.dispatcher.core.items import Admission, Claim, EnqueueOutcome, LeaseParked, WorkspaceLimits, WorkspaceView
from services.dispatcher.store import admission_statements as sql
from services.dispatcher.store.claim_statements import CLAIM, CLAIM_ENDING
from services.dispatcher.store.slots import LOCK_WORKSPACES
from services.dispatcher.store.tables import lease_arrays

ReadRows = Callable[[AdmissionBatch, BatchResult, Rows], None]

_REJECTED = Admission(EnqueueOutcome.REJECTED, message="this dispatcher does not know the workspace")
_ADMISSIONS = {int(outcome): Admission(outcome) for outcome in EnqueueOutcome}

# Settings of the connection. Without them the planner examines the arrays of each batch, at the cost of a second run.
SETTINGS: Final = {**BY_INDEX, "enable_bitmapscan": "off", "enable_material": "off"}
# This is raw SQL like the batch, because composing the arrays of its columns would take twice the lines.
_STORE_LIMITS = """
INSERT INTO dispatcher.tenants AS t (workspace, executions_max, queued_max, revision)
SELECT * FROM unnest(%s, %s, %s, %s) AS l (workspace, executions_max, queued_max, revision) ORDER BY workspace
ON CONFLICT (workspace) DO UPDATE
SET executions_max = excluded.executions_max, queued_max = excluded.queued_max, revision = excluded.revision
WHERE t.revision < excluded.revision
"""


class PostgresQueue:
    def __init__(self, connection: PgConnection) -> None:
        """`connection` has the SETTINGS."""
        self._connection = connection

    async def store_limits(self, limits: Mapping[str, WorkspaceLimits]) -> None:
        """This is a transaction of its own, because it locks tenants in another order than a batch."""
        crash_point("dispatcher.limits.before_commit")
        with _as_unstorable():
            await self._connection.execute(
                _STORE_LIMITS,
                (
                    Texts(list(limits)),
                    Ints([each.executions_max for each in limits.values()]),
                    Ints([each.queued_max for each in limits.values()]),
                    BigInts([each.revision for each in limits.values()]),
                ),
            )
        crash_point("dispatcher.limits.after_commit")

    async def commit(self, batch: AdmissionBatch) -> BatchResult:
        statements, reads = _plan(batch)
        crash_point("dispatcher.batch.before_commit")
        with _as_unstorable():
            answers = await self._connection.run_pipeline(statements)
        crash_point("dispatcher.batch.after_commit")
        result = BatchResult()
        for read, rows in zip(reads, answers, strict=True):
            read(batch, result, rows)
        return result


@contextlib.contextmanager
def _as_unstorable() -> Iterator[None]:
    """Errors that an item or its row may have caused become Unstorable. Any other error would fail every batch, so it
    ends the process; its items have not been answered."""
    try:
        yield
    except psycopg.Error as failure:
        if is_of_values(failure) or is_damage(failure):
            raise Unstorable(str(failure)) from failure
        raise


def _plan(batch: AdmissionBatch) -> tuple[list[HotStatement], list[ReadRows]]:
    """Only the statements that the batch needs. On an idle system a start needs two, a finish one."""
    statements: list[HotStatement] = []
    reads: list[ReadRows] = []

    def add(statement: bytes, params: Sequence[Array | int], read: ReadRows) -> None:
        statements.append((statement, params))
        reads.append(read)

    new_start_workspaces = _new_start_workspaces(batch)
    if new_start_workspaces or batch.workspaces:
        add(LOCK_WORKSPACES, (Texts([*new_start_workspaces, *batch.workspaces]),), _ignore)
    if batch.finished:
        add(sql.FINISH, lease_arrays(batch.finished), _read_finished)
    if batch.parked:
        parked = batch.parked
        ids, epochs = Texts([r.execution_id for r in parked]), BigInts([r.epoch for r in parked])
        add(sql.PARK, (ids, epochs, BigInts([_left_us(r, batch.now) for r in parked])), _read_parked)
        seen = Texts([message_id for report in parked for message_id in report.seen_message_ids])
        seeing = Texts([report.execution_id for report in parked if report.seen_message_ids])
        add(sql.WAKE_PARKED, (seen, ids, seeing), _read_woken)
    if batch.new_starts:
        add(sql.ADMIT, _admit_params(batch, new_start_workspaces), _read_admitted)
    if batch.workspaces:
        rows_each = reach(len(batch.claim_holders), len(batch.workspaces))
        claim = (Texts(batch.workspaces), Ints(batch.claim_holders), rows_each, Texts(batch.holders))
        add(CLAIM, claim, _read_claimed)
    if batch.ending_holders:
        add(CLAIM_ENDING, (Ints(batch.ending_holders), Texts(batch.holders)), _read_ending)
    return statements, reads


def _new_start_workspaces(batch: AdmissionBatch) -> list[str]:
    return list(dict.fromkeys([each.workspace for each in batch.new_starts]))


def _admit_params(batch: AdmissionBatch, workspaces: Sequence[str]) -> Sequence[Array]:
    """The parameters $1, $2, … of ADMIT."""
    new_starts = batch.new_starts
    number_of = {workspace: number for number, workspace in enumerate(workspaces, 1)}
    return (
        Texts([each.execution_id for each in new_starts]),
        Ints([number_of[each.workspace] for each in new_starts]),
        Ints([each.priority for each in new_starts]),
        Times([each.deadline_time for each in new_starts]),
        Texts([each.request_id or None for each in new_starts]),
        Bytes([each.request_hash for each in new_starts]),
        Bytes([each.start for each in new_starts]),
        Ints(batch.new_start_holders),
        Texts(workspaces),
        Ints([batch.waiting.get(workspace) for workspace in workspaces]),
        Texts(batch.holders),
    )


def _left_us(report: LeaseParked, now: datetime) -> int | None:
    return None if report.wake_time is None else (report.wake_time - now) // timedelta(microseconds=1)


def _ignore(batch: AdmissionBatch, result: BatchResult, rows: Rows) -> None:
    """The statement is run for its locks."""


def _read_finished(batch: AdmissionBatch, result: BatchResult, rows: Rows) -> None:
    for n, workspace in rows:
        result.took_effect[batch.finished[n - 1]] = workspace


def _read_parked(batch: AdmissionBatch, result: BatchResult, rows: Rows) -> None:
    for n, workspace in rows:
        result.took_effect[batch.parked[n - 1]] = workspace


def _read_woken(batch: AdmissionBatch, result: BatchResult, rows: Rows) -> None:
    result.woken = [workspace for (workspace,) in rows if workspace is not None]


def _read_admitted(batch: AdmissionBatch, result: BatchResult, rows: Rows) -> None:
    """Reads the two kinds of rows of ADMIT."""
    workspaces = _new_start_workspaces(batch)
    result.admissions = [_REJECTED] * len(batch.new_starts)
    taken = dict.fromkeys(workspaces, 0)
    waiting = dict.fromkeys(workspaces, 0)
    seen: list[tuple[Any, ...]] = []
    for row in rows:
        kind, n, outcome, epoch, existing, _, _, granted_us = row
        if kind == 1:
            seen.append(row)
            continue
        new_start = batch.new_starts[n - 1]
        result.admissions[n - 1] = (
            _ADMISSIONS[outcome] if existing is None else Admission(EnqueueOutcome(outcome), existing)
        )
        if outcome == EnqueueOutcome.QUEUED and not epoch:
            waiting[new_start.workspace] += 1
        elif outcome == EnqueueOutcome.QUEUED:
            taken[new_start.workspace] += 1
            result.claims.append(
                Claim(
                    new_start.execution_id,
                    new_start.workspace,
                    epoch,
                    batch.new_start_holders[n - 1],
                    new_start.order,
                    granted_us,
                    granted_us,
                )
            )
    for _, number, free, queued, _, slots, has_waiting, _ in seen:
        workspace = workspaces[number - 1]
        added = waiting[workspace]
        total = None if workspace in batch.waiting else queued + added
        result.workspaces.append(
            WorkspaceView(workspace, slots, free, taken[workspace], has_waiting or added > 0, added, total)
        )


def _read_claimed(batch: AdmissionBatch, result: BatchResult, rows: Rows) -> None:
    limit = reach(len(batch.claim_holders), len(batch.workspaces))
    taken = [0] * len(batch.workspaces)
    seen: list[tuple[int, int, int, int]] = []
    for index, free, slots, candidates, *claim in rows:
        if free is None:
            taken[index - 1] += 1
            result.claims.append(_claim(claim))
        else:
            seen.append((index - 1, free, slots, candidates))
    for index, free, slots, candidates in seen:
        # More may wait when the slots or the number of claims limited the look.
        has_more = candidates > taken[index] or candidates == min(free, limit)
        result.workspaces.append(
            WorkspaceView(batch.workspaces[index], slots, free, taken[index], has_more, -taken[index])
        )


def _read_ending(batch: AdmissionBatch, result: BatchResult, rows: Rows) -> None:
    result.claims += [_claim(row)._replace(is_ends_only=True) for row in rows]


def _claim(row: Sequence[Any]) -> Claim:
    execution_id, workspace, epoch, holder_index, start, enqueue_us, granted_us, *rest = row
    wake_us, is_resumed, has_begun, messages = rest
    return Claim(
        execution_id,
        workspace,
        epoch,
        holder_index,
        start,
        enqueue_us,
        granted_us,
        is_resumed,
        has_begun,
        messages=messages or (),
        wake_us=wake_us or 0,
    )
