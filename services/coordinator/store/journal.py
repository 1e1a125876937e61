"""The journal: one fenced, autocommitted statement for a whole flush of many executions.

Its parts, all on one snapshot and in one commit:

    fresh     a row of each starting execution, unless one exists: then it is refused
    advanced  the row of each other one, if its epoch and last_seq are still those that the writer knew
    journal, runs   only for what `fresh` or `advanced` let through
    answer    the refused ones, with the epoch and last_seq of their present row

The fence is judged under the row's lock, so a holder whose lease went elsewhere (`load` raised the epoch) can never
commit again. An append whose answer was lost is repeated as it is: refused with our epoch and our last_seq, it had
been written.

Hazards: the statement is planned once per connection, when tables may be small; therefore nested loops on the primary
keys are prescribed, or a plan that scans would stay for as long as the connection. The answer's snapshot may be older
than the row that refused: (epoch, last_seq) then look as if nothing stood in the way, and the append is repeated.
`(… IN …) IS TRUE` keeps the planner from turning a hashed lookup into a join, which the prescription would make nested.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg

from services.chassis.arrays import BigInts
from services.chassis.lane import Connection, Lane
from services.chassis.lease.frames import Lease
from services.coordinator.core.projection import (
    EXECUTION_CHANGING,
    EXECUTION_COLUMNS,
    RUN_CHANGING,
    RUN_COLUMNS,
)
from services.coordinator.handler.ports import Append, AppendRejected, Fence, Loaded
from services.coordinator.store.arrays import OWN_DUMPERS, Uuids
from services.coordinator.store.columns import parameters, read, unnest

_EVENT: Final = ("execution_id", "seq", "epoch", "event")
NEW_EXECUTION: Final = (*EXECUTION_COLUMNS, "summary")
CHANGED_EXECUTION: Final = (*EXECUTION_CHANGING, "summary")
NEW_RUN: Final = (*RUN_COLUMNS[1:], "effect_key")
CHANGED_RUN: Final = ("execution_id", "number", *RUN_CHANGING[1:])
_PRESCRIBED: Final = (
    "SET plan_cache_mode = force_generic_plan",
    "SET enable_seqscan = off",
    "SET enable_hashjoin = off",
    "SET enable_mergejoin = off",
    "SET jit = off",
)


def _assignments(alias: str, columns: Sequence[str], keys: Sequence[str]) -> str:
    return ", ".join(f"{column} = {read(alias, column)}" for column in columns if column not in keys)


_IS_WRITTEN: Final = "(g.execution_id IN (SELECT execution_id FROM written))"


def _values(alias: str, columns: Sequence[str]) -> str:
    return ", ".join(read(alias, column) for column in columns)


_CHANGE: Final = (*CHANGED_EXECUTION, "fence_epoch", "fence_seq")
APPEND: Final = f"""
WITH fresh AS (
    INSERT INTO executions ({", ".join(NEW_EXECUTION)})
    SELECT {_values("g", NEW_EXECUTION)} FROM {unnest("g", NEW_EXECUTION)}
    ON CONFLICT (execution_id) DO NOTHING RETURNING execution_id
), advanced AS (
    UPDATE executions e SET {_assignments("g", CHANGED_EXECUTION, ("execution_id",))}
    FROM {unnest("g", _CHANGE)}
    WHERE e.execution_id = g.execution_id AND e.epoch = g.fence_epoch AND e.last_seq = g.fence_seq
    RETURNING e.execution_id
), written AS MATERIALIZED (
    SELECT execution_id FROM fresh UNION ALL SELECT execution_id FROM advanced
), journalled AS (
    INSERT INTO journal ({", ".join(_EVENT)})
    SELECT {_values("g", _EVENT)} FROM {unnest("g", _EVENT)}
    WHERE {_IS_WRITTEN} IS TRUE
), leased AS (
    INSERT INTO runs ({", ".join(NEW_RUN)})
    SELECT {_values("g", NEW_RUN)} FROM {unnest("g", NEW_RUN)}
    WHERE {_IS_WRITTEN} IS TRUE
), moved AS (
    UPDATE runs r SET {_assignments("g", CHANGED_RUN, ("execution_id", "number"))}
    FROM {unnest("g", CHANGED_RUN)}
    WHERE r.execution_id = g.execution_id AND r.number = g.number AND {_IS_WRITTEN} IS TRUE
)
SELECT g.place, coalesce(e.epoch, 0), coalesce(e.last_seq, 0)
FROM unnest(%s::uuid[]) WITH ORDINALITY AS g (execution_id, place)
LEFT JOIN executions e ON e.execution_id = g.execution_id
WHERE {_IS_WRITTEN} IS NOT TRUE
"""

_NUMBERS: Final = itertools.count(1)
_APPEND_RAW: Final = re.sub("%s", lambda _: f"${next(_NUMBERS)}", APPEND).encode()

FENCE: Final = """
UPDATE executions e SET epoch = g.epoch FROM unnest(%s::uuid[], %s::int8[]) AS g (execution_id, epoch)
WHERE e.execution_id = g.execution_id AND e.epoch <= g.epoch
"""
READ_FENCES: Final = """
SELECT g.place, e.epoch FROM unnest(%s::uuid[]) WITH ORDINALITY AS g (execution_id, place)
JOIN executions e ON e.execution_id = g.execution_id
"""
READ_EVENTS: Final = """
SELECT g.place, j.event FROM unnest(%s::uuid[]) WITH ORDINALITY AS g (execution_id, place)
JOIN journal j ON j.execution_id = g.execution_id ORDER BY g.place, j.seq
"""
LIVE_INSTANCES: Final = """
SELECT instance_id, CASE state WHEN 'LIVE' THEN 0 ELSE extract(epoch FROM clock_timestamp() - heard_time)::float8 END
FROM runner_sessions
WHERE state = 'LIVE' OR heard_time > clock_timestamp() - make_interval(secs => %s::float8)
"""


class PostgresJournal:
    """`writer` is the flusher's own connection; loads go over `reader`, beside it."""

    def __init__(self, writer: Lane, reader: Lane) -> None:
        self._writer = writer
        self._reader = reader
        self._prepared: dict[str, Connection] = {}

    async def append(self, appends: Sequence[Append]) -> Mapping[int, Fence]:
        given = _append_parameters(appends)

        async def work(connection: Connection) -> list[tuple[Any, ...]]:
            await self._prepare("writer", connection)
            # Raw: the driver would take a statement of this length apart anew at every use.
            cursor = psycopg.AsyncRawCursor(connection)
            await cursor.execute(_APPEND_RAW, given, binary=True)
            return await cursor.fetchall()

        try:
            rows = await self._writer.run(work)
        except psycopg.Error as failure:
            # Only the primary message: the detail would quote the row.
            raise AppendRejected(failure.diag.message_primary or type(failure).__name__) from None
        return {place - 1: Fence(epoch, last_seq) for place, epoch, last_seq in rows}

    async def load(self, leases: Sequence[Lease]) -> Sequence[Loaded]:
        ids = Uuids([lease.lease_id for lease in leases])

        async def work(connection: Connection) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
            await self._prepare("reader", connection)
            async with connection.pipeline():
                # One transaction: the fences are locked until the commit, and each later statement sees all
                # that was committed before they were.
                await connection.execute(FENCE, (ids, BigInts([lease.epoch for lease in leases])))
                fences = await connection.execute(READ_FENCES, (ids,), binary=True)
                events = await connection.execute(READ_EVENTS, (ids,), binary=True)
            return await fences.fetchall(), await events.fetchall()

        fences, events = await self._reader.run(work)
        epochs = {place - 1: epoch for place, epoch in fences}
        journals: list[list[bytes]] = [[] for _ in leases]
        for place, rows in itertools.groupby(events, lambda row: row[0]):
            journals[place - 1] = [row[1] for row in rows]
        return [
            Loaded(epochs.get(place, 0), journals[place] if epochs.get(place, 0) == lease.epoch else ())
            for place, lease in enumerate(leases)
        ]

    async def live_instances(self, granted_again: float) -> Mapping[str, float]:
        return dict(await self._reader.fetch(LIVE_INSTANCES, (granted_again,)))

    async def _prepare(self, role: str, connection: Connection) -> None:
        """What a new connection of ours must know, once."""
        if self._prepared.get(role) is connection:
            return
        for kind, dumper in OWN_DUMPERS.items():
            connection.adapters.register_dumper(kind, dumper)
        for setting in _PRESCRIBED:
            await connection.execute(setting)
        self._prepared[role] = connection


def _append_parameters(appends: Sequence[Append]) -> list[Any]:
    fresh: list[tuple[Any, ...]] = []
    advanced: list[tuple[Any, ...]] = []
    events: list[tuple[Any, ...]] = []
    new_runs: list[tuple[Any, ...]] = []
    changed_runs: list[tuple[Any, ...]] = []
    for append in appends:
        execution_id, epoch, from_seq = append.execution_id, append.epoch, append.from_seq
        if from_seq:
            advanced.append((*append.execution, epoch, from_seq))
        else:
            fresh.append(append.execution)
        events += [(execution_id, seq, epoch, event) for seq, event in enumerate(append.events, from_seq + 1)]
        new_runs += append.new_runs
        changed_runs += append.changed_runs
    return [
        *parameters(NEW_EXECUTION, fresh),
        *parameters(_CHANGE, advanced),
        *parameters(_EVENT, events),
        *parameters(NEW_RUN, new_runs),
        *parameters(CHANGED_RUN, changed_runs),
        Uuids([append.execution_id for append in appends]),
    ]
