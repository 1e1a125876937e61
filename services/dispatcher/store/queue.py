"""A turn as one transaction in one round trip, on a connection that belongs to the turns.

Hazard: `CommitUnknown` leaves it open whether the turn happened. Repeating it is safe: newcomers are recognised by
their ids, reports by what they left behind, and grants that were committed without being sent are found by
loops/rounds.py.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg

from services.chassis.arrays import Array, BigInts, Bytes, Ints, Texts, Times
from services.chassis.crash import crash_point
from services.chassis.exchange import HotStatement, Rows
from services.chassis.lane import BY_INDEX, Lane, is_damage, is_of_values
from services.dispatcher.core.items import Admission, LaneView, Limits, Outcome, Parked, Place
from services.dispatcher.core.seats import reach
from services.dispatcher.core.turn import Turn, TurnResult
from services.dispatcher.handler.ports import Unstorable
from services.dispatcher.store import turn_statements as sql

Read = Callable[[Turn, TurnResult, Rows], None]

_REJECTED = Admission(Outcome.REJECTED, message="the workspace is not known here")
_ADMISSIONS = {int(outcome): Admission(outcome) for outcome in Outcome}

# Of the connection: the planner would look at the arrays of each turn anew, which costs as much as running it.
SETTINGS: Final = {**BY_INDEX, "enable_bitmapscan": "off", "enable_material": "off"}
_STORE_LIMITS = """
INSERT INTO dispatcher.tenants AS t (workspace, executions_max, queued_max, revision)
SELECT * FROM unnest(%s, %s, %s, %s) AS l (workspace, executions_max, queued_max, revision) ORDER BY workspace
ON CONFLICT (workspace) DO UPDATE
SET executions_max = excluded.executions_max, queued_max = excluded.queued_max, revision = excluded.revision
WHERE t.revision < excluded.revision
"""


class PostgresQueue:
    def __init__(self, lane: Lane) -> None:
        """`lane` has the SETTINGS."""
        self._lane = lane

    async def store_limits(self, limits: Mapping[str, Limits]) -> None:
        """A statement of its own: it locks tenants in another order than a turn would."""
        crash_point("dispatcher.limits.before_commit")
        with _as_unstorable():
            await self._lane.execute(
                _STORE_LIMITS,
                (
                    Texts(list(limits)),
                    Ints([each.executions_max for each in limits.values()]),
                    Ints([each.queued_max for each in limits.values()]),
                    BigInts([each.revision for each in limits.values()]),
                ),
            )
        crash_point("dispatcher.limits.after_commit")

    async def turn(self, turn: Turn) -> TurnResult:
        statements, reads = _plan(turn)
        crash_point("dispatcher.turn.before_commit")
        with _as_unstorable():
            answers = await self._lane.exchange(statements)
        crash_point("dispatcher.turn.after_commit")
        result = TurnResult()
        for read, rows in zip(reads, answers, strict=True):
            read(turn, result, rows)
        return result


@contextlib.contextmanager
def _as_unstorable() -> Iterator[None]:
    """What an item may be to blame for, or its row. Anything else would be the fate of every turn, item by item: it
    ends the process, and what it had was not answered."""
    try:
        yield
    except psycopg.Error as failure:
        if is_of_values(failure) or is_damage(failure):
            raise Unstorable(str(failure)) from failure
        raise


def _plan(turn: Turn) -> tuple[list[HotStatement], list[Read]]:
    """Only what the turn needs: a start, or a finish, on an idle system is two statements or one."""
    statements: list[HotStatement] = []
    reads: list[Read] = []

    def add(statement: bytes, params: Sequence[Array | int], read: Read) -> None:
        statements.append((statement, params))
        reads.append(read)

    newcomer_lanes = list(dict.fromkeys([each.workspace for each in turn.newcomers]))
    if newcomer_lanes or turn.lanes:
        add(sql.LOCK, (Texts([*newcomer_lanes, *turn.lanes]),), _ignore)
    if turn.finished:
        ids, epochs = (
            Texts([r.execution_id for r in turn.finished]),
            BigInts([r.epoch for r in turn.finished]),
        )
        add(sql.FINISH, (ids, epochs), _read_finished)
    if turn.parked:
        parked = turn.parked
        ids, epochs = Texts([r.execution_id for r in parked]), BigInts([r.epoch for r in parked])
        add(sql.PARK, (ids, epochs, BigInts([_left_us(r, turn.now) for r in parked])), _read_parked)
        seen = Texts([message_id for report in parked for message_id in report.seen_message_ids])
        seeing = Texts([report.execution_id for report in parked if report.seen_message_ids])
        add(sql.WAKE_PARKED, (seen, ids, seeing), _read_woken)
    if turn.newcomers:
        add(sql.ADMIT, _admit_params(turn, newcomer_lanes), _Admitted(newcomer_lanes))
    if turn.lanes:
        places = len(turn.lane_seats)
        claim = (
            Texts(turn.lanes),
            Ints(turn.lane_seats),
            reach(places, len(turn.lanes)),
            Texts(turn.holders),
        )
        add(sql.CLAIM, claim, _read_claimed)
    if turn.ending_seats:
        add(sql.CLAIM_ENDING, (Ints(turn.ending_seats), Texts(turn.holders)), _read_ending)
    return statements, reads


def _admit_params(turn: Turn, lanes: Sequence[str]) -> Sequence[Array]:
    """In the order of $1, $2, … in ADMIT."""
    newcomers = turn.newcomers
    lane_of = {workspace: number for number, workspace in enumerate(lanes, 1)}
    return (
        Texts([each.execution_id for each in newcomers]),
        Ints([lane_of[each.workspace] for each in newcomers]),
        Ints([each.priority for each in newcomers]),
        Times([each.deadline_time for each in newcomers]),
        Texts([each.request_id or None for each in newcomers]),
        Bytes([each.request_hash for each in newcomers]),
        Bytes([each.start for each in newcomers]),
        Ints(turn.newcomer_seats),
        Texts(lanes),
        Ints([turn.waiting.get(workspace) for workspace in lanes]),
        Texts(turn.holders),
    )


def _left_us(report: Parked, now: datetime) -> int | None:
    return None if report.wake_time is None else (report.wake_time - now) // timedelta(microseconds=1)


def _ignore(turn: Turn, result: TurnResult, rows: Rows) -> None:
    """A statement that is run for its locks."""


def _read_finished(turn: Turn, result: TurnResult, rows: Rows) -> None:
    result.finished = [None] * len(turn.finished)
    for n, workspace in rows:
        result.finished[n - 1] = workspace


def _read_parked(turn: Turn, result: TurnResult, rows: Rows) -> None:
    result.parked = [None] * len(turn.parked)
    for n, workspace in rows:
        result.parked[n - 1] = workspace


def _read_woken(turn: Turn, result: TurnResult, rows: Rows) -> None:
    result.woken = [workspace for (workspace,) in rows if workspace is not None]


class _Admitted:
    """Reads the two kinds of rows of ADMIT."""

    def __init__(self, lanes: Sequence[str]) -> None:
        self._lanes = lanes

    def __call__(self, turn: Turn, result: TurnResult, rows: Rows) -> None:
        admissions = [_REJECTED] * len(turn.newcomers)
        taken = [0] * len(self._lanes)
        waiting = [0] * len(self._lanes)
        seen: list[tuple[Any, ...]] = []
        for row in rows:
            kind, n, outcome, epoch, existing, _, _, granted_us = row
            if kind == 1:
                seen.append(row)
                continue
            admissions[n - 1] = (
                _ADMISSIONS[outcome] if existing is None else Admission(Outcome(outcome), existing)
            )
            if outcome != Outcome.QUEUED:
                continue
            newcomer = turn.newcomers[n - 1]
            lane = self._lanes.index(newcomer.workspace) if len(self._lanes) > 1 else 0
            if not epoch:
                waiting[lane] += 1
                continue
            taken[lane] += 1
            result.places.append(
                Place(
                    newcomer.execution_id,
                    newcomer.workspace,
                    epoch,
                    turn.newcomer_seats[n - 1],
                    newcomer.order,
                    granted_us,
                    granted_us,
                )
            )
        result.admissions = admissions
        for _, number, free, queued, _, slots, has_waiting, _ in seen:
            lane = number - 1
            workspace = self._lanes[lane]
            total = None if workspace in turn.waiting else queued + waiting[lane]
            has_more = has_waiting or waiting[lane] > 0
            result.lanes.append(LaneView(workspace, slots, free, taken[lane], has_more, waiting[lane], total))


def _read_claimed(turn: Turn, result: TurnResult, rows: Rows) -> None:
    limit = reach(len(turn.lane_seats), len(turn.lanes))
    taken = [0] * len(turn.lanes)
    seen: list[tuple[int, int, int, int]] = []
    for lane, free, slots, candidates, *place in rows:
        if free is None:
            taken[lane - 1] += 1
            result.places.append(_place(place))
        else:
            seen.append((lane - 1, free, slots, candidates))
    for lane, free, slots, candidates in seen:
        # A look that was cut short by the slots or the places may have left something.
        has_more = candidates > taken[lane] or candidates == min(free, limit)
        result.lanes.append(LaneView(turn.lanes[lane], slots, free, taken[lane], has_more, -taken[lane]))


def _read_ending(turn: Turn, result: TurnResult, rows: Rows) -> None:
    result.places += [_place(row)._replace(is_ends_only=True) for row in rows]


def _place(row: Sequence[Any]) -> Place:
    execution_id, workspace, epoch, seat, start, enqueue_us, granted_us, is_resumed, messages = row
    return Place(
        execution_id, workspace, epoch, seat, start, enqueue_us, granted_us, is_resumed, False, messages or ()
    )
