"""The append as SQL: one statement, composed of the parts that have rows.

    fresh     inserts the row of each starting execution; if there is one already, the append is refused
    advanced  updates the row of each other execution if its epoch and last_seq are still those that the writer knew
    reopened  does the same for executions that were reopened, which may have another deadline
    journal; snapshots; leased, made, ended, moved runs; approvals; dead letters
              only for executions that one of these let through
    answer    the refused executions, with the epoch and last_seq of their present rows

Every step waits for it, so it is text for libpq, at half the CPU of the driver (chassis/postgres/raw_pipeline.py). Each
combination of parts is a prepared statement of its own. There are few, and each saves the server needless work.

Hazard: `(… IN …) IS TRUE` keeps the planner from turning a hashed lookup into a join, which would be quadratic, because
journal.py prescribes nested loops.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Final

from services.chassis.postgres.arrays import Array
from services.chassis.postgres.raw_pipeline import Rows
from services.coordinator.app.ports import Append
from services.coordinator.core.projection import (
    APPROVAL_CHANGING,
    APPROVAL_COLUMNS,
    DEAD_LETTER_COLUMNS,
    EXECUTION_CHANGING,
    EXECUTION_COLUMNS,
    EXECUTION_REOPENED,
    RUN_CHANGING,
    RUN_COLUMNS,
    RUN_LEASE,
    RUN_RESULT,
)
from services.coordinator.store.columns import Uuids, parameters, read, unnest

_RUN_KEY: Final = ("execution_id", "number")
_RUN_KEY_LIST: Final = "(execution_id, number)"
# Nothing else of a dead letter ever changes.
_RESOLUTION: Final = ", ".join(
    f"{column} = excluded.{column}" for column in ("resolution", "resolve_time", "reviewer", "notes")
)
_FENCE: Final = ("fence_epoch", "fence_seq")
# The parameters of each part, in the order of the statement.
COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "fresh": (*EXECUTION_COLUMNS, "summary"),
    "advanced": (*EXECUTION_CHANGING, "summary", *_FENCE),
    "reopened": (*EXECUTION_REOPENED, "summary", *_FENCE),
    "journal": ("execution_id", "last_seq", "epoch", "events"),
    "snapshots": ("execution_id", "last_seq", "format", "is_whole", "data"),
    "leased": (*RUN_LEASE, "effect_key"),
    "made": (*RUN_COLUMNS, "effect_key"),
    "ended": RUN_RESULT,
    "moved": RUN_CHANGING,
    "approvals": APPROVAL_COLUMNS,
    "dead_letters": DEAD_LETTER_COLUMNS,
}
_IS_WRITTEN: Final = "(g.execution_id IN (SELECT execution_id FROM written))"


def insertion(table: str, part: str) -> str:
    columns = COLUMNS[part]
    values = ", ".join(read("g", column) for column in columns)
    return f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {unnest('g', columns)}"


def _assignments(part: str, keys: Sequence[str]) -> str:
    return ", ".join(f"{column} = {read('g', column)}" for column in COLUMNS[part] if column not in keys)


def _update_execution(part: str) -> str:
    return (
        f"UPDATE executions e SET {_assignments(part, ('execution_id', *_FENCE))}"
        f" FROM {unnest('g', COLUMNS[part])}"
        " WHERE e.execution_id = g.execution_id AND e.epoch = g.fence_epoch AND e.last_seq = g.fence_seq"
        " RETURNING e.execution_id"
    )


def _update_runs(part: str) -> str:
    return (
        f"UPDATE runs r SET {_assignments(part, _RUN_KEY)} FROM {unnest('g', COLUMNS[part])}"
        f" WHERE r.execution_id = g.execution_id AND r.number = g.number AND {_IS_WRITTEN} IS TRUE"
    )


_PARTS: Final[Mapping[str, str]] = {
    "fresh": f"{insertion('executions', 'fresh')} ON CONFLICT (execution_id) DO NOTHING RETURNING execution_id",
    "advanced": _update_execution("advanced"),
    "reopened": _update_execution("reopened"),
    "journal": f"{insertion('journal', 'journal')} WHERE {_IS_WRITTEN} IS TRUE",
    "snapshots": f"{insertion('snapshots', 'snapshots')} WHERE {_IS_WRITTEN} IS TRUE",
    "leased": f"{insertion('runs', 'leased')} WHERE {_IS_WRITTEN} IS TRUE",
    "made": f"{insertion('runs', 'made')} WHERE {_IS_WRITTEN} IS TRUE",
    "ended": _update_runs("ended"),
    "moved": _update_runs("moved"),
    "approvals": (
        f"{insertion('approvals', 'approvals')} WHERE {_IS_WRITTEN} IS TRUE ON CONFLICT (execution_id, number)"
        f" DO UPDATE SET {', '.join(f'{column} = excluded.{column}' for column in APPROVAL_CHANGING)}"
    ),
    "dead_letters": (
        f"{insertion('dead_letters', 'dead_letters')} WHERE {_IS_WRITTEN} IS TRUE"
        f" ON CONFLICT {_RUN_KEY_LIST} DO UPDATE SET {_RESOLUTION}"
    ),
}
_EXECUTION_PARTS: Final = ("fresh", "advanced", "reopened")
_ANSWER: Final = f"""
SELECT g.place, coalesce(e.epoch, 0), coalesce(e.last_seq, 0)
FROM unnest(%s::uuid[]) WITH ORDINALITY AS g (execution_id, place)
LEFT JOIN executions e ON e.execution_id = g.execution_id
WHERE {_IS_WRITTEN} IS NOT TRUE
"""


@functools.cache
def statement(parts: tuple[str, ...]) -> bytes:
    """The statement of these parts (in the order of COLUMNS), with the numbered placeholders of the wire protocol."""
    first = [part for part in parts if part in _EXECUTION_PARTS]
    written = " UNION ALL ".join(f"SELECT execution_id FROM {part}" for part in first)
    clauses = [f"{part} AS ({_PARTS[part]})" for part in first]
    clauses.append(f"written AS MATERIALIZED ({written})")
    clauses += [f"{part}_done AS ({_PARTS[part]})" for part in parts if part not in first]
    numbers = itertools.count(1)
    text = f"WITH {', '.join(clauses)}{_ANSWER}"
    return re.sub("%s", lambda _: f"${next(numbers)}", text).encode()


def composed(appends: Sequence[Append]) -> tuple[bytes, list[Array]]:
    """The statement for these appends, and its parameters."""
    rows: dict[str, Rows] = {part: [] for part in COLUMNS}
    for append in appends:
        execution_id, epoch, from_seq = append.execution_id, append.epoch, append.from_seq
        if append.is_reopened:
            rows["reopened"].append((*append.execution, epoch, from_seq))
        elif from_seq:
            rows["advanced"].append((*append.execution, epoch, from_seq))
        else:
            rows["fresh"].append(append.execution)
        rows["journal"].append((execution_id, append.last_seq, epoch, append.entry))
        if append.snapshot is not None:
            rows["snapshots"].append((execution_id, *append.snapshot))
        rows["leased"] += append.leased
        rows["made"] += append.made
        rows["ended"] += append.ended
        rows["moved"] += append.moved
        rows["approvals"] += append.approvals
        rows["dead_letters"] += append.dead_letters
    given: list[Array] = []
    for part, found in rows.items():
        if found:
            given += parameters(COLUMNS[part], found)
    given.append(Uuids([append.execution_id for append in appends]))
    return statement(tuple(part for part, found in rows.items() if found)), given
