"""The circuits in PostgreSQL, shared by all coordinators.

A visit locks its rows, applies the rules (core/circuits.py) to them in this process, and writes them back in one
statement. Rows are locked in the order of their keys, so that visits of several coordinators never wait in a circle.

The statements are raw SQL, because every coordinator polls, and many never need SQLAlchemy (reads.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from services.chassis.postgres.arrays import BigInts, Ints, Texts
from services.chassis.postgres.connection import Connection
from services.chassis.postgres.database import Database
from services.coordinator.app.ports import CircuitChange, CircuitsFull, CircuitStanding
from services.coordinator.core.circuits import (
    Circuit,
    CircuitPolicy,
    CircuitState,
    CircuitVisit,
    OutcomeWindow,
    Permit,
    WaitingCount,
    opened_by_hand,
    reset,
    visited,
)
from services.coordinator.core.values import Instant
from services.coordinator.store.columns import Instants

# So many targets of a workspace may have a circuit. Targets beyond are called as if they had none.
CIRCUITS_MAX: Final = 1_000
# The circuits of all workspaces that a coordinator looks at.
_STANDINGS_MAX: Final = 20_000
_TIMES: Final = ("open_time", "retry_time", "last_failure_time")
_COLUMNS: Final = ", ".join(
    [
        "c.workspace, c.target, c.state, c.generation, c.openings, c.probes_answered, c.outcomes, c.permits, c.waiting",
        *(f"(extract(epoch FROM c.{name}) * 1000000)::int8" for name in _TIMES),
    ]
)
# The time is read after the rows are locked, because a lock may have been waited for.
_NOW: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8"
_STANDINGS: Final = """
SELECT workspace, target, state, generation,
       (SELECT count(*) FROM jsonb_array_elements(permits) AS p
        WHERE (p ->> 1)::int8 > extract(epoch FROM clock_timestamp()) * 1000000),
       coalesce(extract(epoch FROM retry_time - clock_timestamp()), 0)::float8
FROM circuits ORDER BY state = 'CLOSED' LIMIT %s
"""
_ADD: Final = """
INSERT INTO circuits (workspace, target)
SELECT g.workspace, g.target FROM unnest(%s::text[], %s::text[]) AS g (workspace, target)
WHERE NOT EXISTS (SELECT FROM circuits c WHERE c.workspace = g.workspace AND c.target = g.target)
  AND (SELECT count(*) FROM circuits c WHERE c.workspace = g.workspace) < %s
ON CONFLICT DO NOTHING
"""
_LOCK: Final = f"""
SELECT {_COLUMNS} FROM circuits c
WHERE (c.workspace, c.target) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
ORDER BY c.workspace, c.target FOR UPDATE
"""
_WRITE: Final = """
UPDATE circuits c SET state = g.state, generation = g.generation, openings = g.openings,
  probes_answered = g.probes_answered, outcomes = g.outcomes::jsonb, permits = g.permits::jsonb,
  waiting = g.waiting::jsonb, open_time = g.open_time, retry_time = g.retry_time,
  last_failure_time = g.last_failure_time
FROM unnest(%s::text[], %s::text[], %s::text[], %s::int8[], %s::int4[], %s::int4[], %s::text[], %s::text[], %s::text[],
            %s::timestamptz[], %s::timestamptz[], %s::timestamptz[])
  AS g (workspace, target, state, generation, openings, probes_answered, outcomes, permits, waiting, open_time,
        retry_time, last_failure_time)
WHERE c.workspace = g.workspace AND c.target = g.target
"""
_PAGE: Final = f"""
SELECT {_COLUMNS} FROM circuits c
WHERE c.workspace = %s AND c.target > %s AND starts_with(c.target, %s) AND (%s = '' OR c.state = %s)
ORDER BY c.target LIMIT %s
"""
_GET: Final = f"SELECT {_COLUMNS} FROM circuits c WHERE c.workspace = %s AND c.target = %s"
# One that is not closed is forgotten too, when nobody has asked to probe it for a long time. The last member of a
# permit, and of a count of waiting work, is when it ends.
_FORGET: Final = """
DELETE FROM circuits c USING (
  SELECT workspace, target FROM circuits
  WHERE greatest(last_failure_time, open_time, retry_time) < now() - make_interval(secs => %s::float8)
    AND NOT EXISTS (
      SELECT FROM jsonb_array_elements(permits || waiting) AS e
      WHERE (e ->> -1)::int8 > extract(epoch FROM clock_timestamp()) * 1000000
    )
  LIMIT 1000 FOR UPDATE SKIP LOCKED
) old WHERE c.workspace = old.workspace AND c.target = old.target
"""


class PostgresCircuits:
    def __init__(self, database: Database, policy: CircuitPolicy) -> None:
        self._database = database
        self._policy = policy

    async def standings(self) -> Sequence[CircuitStanding]:
        return [CircuitStanding(*row) for row in await self._database.fetch(_STANDINGS, (_STANDINGS_MAX,))]

    async def visit(self, visits: Sequence[CircuitVisit]) -> Sequence[CircuitChange]:
        by_key = {(each.workspace, each.target): each for each in visits}
        failed = sorted(key for key, each in by_key.items() if any(each.failures))

        async def work(connection: Connection) -> list[CircuitChange]:
            if failed:
                await connection.execute(_ADD, (*_keys(failed), CIRCUITS_MAX))
            before, now = await _locked(connection, sorted(by_key))
            after = [visited(each, by_key[each.workspace, each.target], self._policy, now) for each in before]
            await _write(connection, after)
            return [CircuitChange(old, new, now) for old, new in zip(before, after, strict=True)]

        return await self._database.transaction(work)

    async def page(self, workspace: str, state: str, prefix: str, after: str, limit: int) -> Sequence[Circuit]:
        rows = await self._database.fetch(_PAGE, (workspace, after, prefix, state, state, limit))
        return [_circuit(row) for row in rows]

    async def get(self, workspace: str, target: str) -> Circuit | None:
        row = await self._database.fetch_one(_GET, (workspace, target))
        return None if row is None else _circuit(row)

    async def reset(self, workspace: str, target: str) -> Circuit | None:
        return await self._change(workspace, target, lambda circuit, _: reset(circuit))

    async def open(self, workspace: str, target: str, until: Instant) -> Circuit:
        opened = await self._change(
            workspace, target, lambda circuit, now: opened_by_hand(circuit, until, now), makes_row=True
        )
        if opened is None:
            raise CircuitsFull
        return opened

    async def forget_idle(self, idle_seconds: float) -> int:
        """Deletes some that have not failed for so long; returns how many."""
        return await self._database.execute(_FORGET, (idle_seconds,))

    async def _change(
        self, workspace: str, target: str, change: Callable[[Circuit, Instant], Circuit], *, makes_row: bool = False
    ) -> Circuit | None:
        keys = [(workspace, target)]

        async def work(connection: Connection) -> Circuit | None:
            if makes_row:
                await connection.execute(_ADD, (*_keys(keys), CIRCUITS_MAX))
            before, now = await _locked(connection, keys)
            after = [change(each, now) for each in before]
            await _write(connection, after)
            return after[0] if after else None

        return await self._database.transaction(work)


def _keys(keys: Sequence[tuple[str, str]]) -> tuple[Texts, Texts]:
    return Texts([workspace for workspace, _ in keys]), Texts([target for _, target in keys])


async def _locked(connection: Connection, keys: Sequence[tuple[str, str]]) -> tuple[list[Circuit], Instant]:
    cursor = await connection.execute(_LOCK, _keys(keys), binary=True)
    circuits = [_circuit(row) for row in await cursor.fetchall()]
    ((now,),) = await (await connection.execute(_NOW, binary=True)).fetchall()
    return circuits, now


async def _write(connection: Connection, circuits: Sequence[Circuit]) -> None:
    if not circuits:
        return
    columns = list(zip(*map(_row, circuits), strict=True))
    kinds = (Texts, Texts, Texts, BigInts, Ints, Ints, Texts, Texts, Texts, Instants, Instants, Instants)
    await connection.execute(_WRITE, [kind(values) for kind, values in zip(kinds, columns, strict=True)])


def _row(circuit: Circuit) -> tuple[Any, ...]:
    return (
        circuit.workspace,
        circuit.target,
        circuit.state.value,
        circuit.generation,
        circuit.openings,
        circuit.probes_answered,
        *(json.dumps(value) for value in (circuit.window, circuit.permits, circuit.waiting)),
        *(getattr(circuit, name) for name in _TIMES),
    )


def _circuit(row: Sequence[Any]) -> Circuit:
    workspace, target, state, generation, openings, answered, outcomes, permits, waiting, *times = row
    window = OutcomeWindow(outcomes[0], tuple(outcomes[1]), tuple(outcomes[2])) if outcomes else OutcomeWindow()
    return Circuit(
        workspace,
        target,
        CircuitState(state),
        generation,
        window,
        openings,
        tuple(Permit(*each) for each in permits),
        answered,
        tuple(WaitingCount(*each) for each in waiting),
        *(time or 0 for time in times),
    )
