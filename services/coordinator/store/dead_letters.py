"""Reads dead letters, and deletes old ones. A row is a mapping by column name, in the forms of the core.

Lists are read by (workspace, quarantine_time). Imported at the first use, because SQLAlchemy costs a second and many a
coordinator never lists anything (reads.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    DateTime,
    Select,
    Text,
    Uuid,
    and_,
    case,
    cast,
    distinct,
    extract,
    func,
    literal,
    null,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by

from services.coordinator.app.ports import DeadLetterPlace
from services.coordinator.core.projection import DEAD_LETTER_COLUMNS
from services.coordinator.store.conditions import Filtered
from services.coordinator.store.tables import dead_letters, runs
from windlass.coordinator.v1.reads_pb2 import Condition

READ: Final = (*DEAD_LETTER_COLUMNS, "requeued_run")
GROUPED: Final = ("count", "first_time", "last_time", "workflows")

_FILTERED: Final = Filtered(
    {
        **{
            name: dead_letters.c[name]
            for name in ("workflow", "version", "node", "module", "reason", "resolution", "reviewer", "quarantine_time")
        },
        "execution_id": cast(dead_letters.c.execution_id, Text),
        "error.type": dead_letters.c.error_type,
        "error.message": dead_letters.c.error_message,
        "error.fingerprint": dead_letters.c.error_fingerprint,
    },
    nothing={"reviewer": ""},
)
# The first run of the work after a person had it done again.
_REQUEUED_RUN: Final = case(
    (
        dead_letters.c.resolution.in_(("REQUEUED", "FIXED")),
        select(func.min(runs.c.number))
        .where(
            runs.c.execution_id == dead_letters.c.execution_id,
            runs.c.node == dead_letters.c.node,
            runs.c.iteration == dead_letters.c.iteration,
            runs.c.generation == dead_letters.c.generation + 1,
        )
        .scalar_subquery(),
    )
)
_ORDER: Final = (dead_letters.c.quarantine_time, dead_letters.c.execution_id, dead_letters.c.number)


def _in_core_form(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Ids as text, instants as microseconds since 1970."""
    if isinstance(column.type, Uuid):
        return cast(column, Text)
    if isinstance(column.type, DateTime):
        return cast(extract("epoch", column) * 1_000_000, BigInteger)
    return column


def _read(names: Sequence[str]) -> list[ColumnElement[Any]]:
    return [
        *(_in_core_form(dead_letters.c[name]) if name in names else null() for name in DEAD_LETTER_COLUMNS),
        _REQUEUED_RUN,
    ]


_READ: Final = _read(DEAD_LETTER_COLUMNS)
# Lists do not show what the work was done on, which may have 64 KiB.
_LISTED: Final = _read([name for name in DEAD_LETTER_COLUMNS if name != "rendered"])


def one(workspace: str, execution_id: str, number: int) -> Select[Any]:
    letter = dead_letters.c
    return select(*_READ).where(
        letter.workspace == workspace, letter.execution_id == execution_id, letter.number == number
    )


def page(
    workspace: str, conditions: Sequence[Condition], after: DeadLetterPlace | None, limit: int, *, is_ascending: bool
) -> Select[Any]:
    """Raises ConditionUnknown."""
    found = select(*_LISTED).where(*_of(workspace, conditions))
    if after is not None:
        time = func.to_timestamp(literal(after.time_us, BigInteger) / literal(1_000_000.0))
        place = tuple_(time, cast(after.execution_id, Uuid(as_uuid=False)), literal(after.number))
        found = found.where(tuple_(*_ORDER) > place if is_ascending else tuple_(*_ORDER) < place)
    order = _ORDER if is_ascending else [column.desc() for column in _ORDER]
    return found.order_by(*order).limit(limit)


def groups(workspace: str, conditions: Sequence[Condition], limit: int) -> Select[Any]:
    """The newest dead letter of each group, then GROUPED. Raises ConditionUnknown."""
    letter = dead_letters.c
    newest = aggregate_order_by(letter.number, *(column.desc() for column in _ORDER))
    newest_of = aggregate_order_by(letter.execution_id, *(column.desc() for column in _ORDER))
    grouped = (
        select(
            func.array_agg(newest_of)[1].label("execution_id"),
            func.array_agg(newest)[1].label("number"),
            func.count().label("count"),
            func.min(letter.quarantine_time).label("first_time"),
            func.max(letter.quarantine_time).label("last_time"),
            func.array_agg(distinct(letter.workflow)).label("workflows"),
        )
        .where(*_of(workspace, conditions))
        .group_by(letter.error_fingerprint)
        .order_by(func.max(letter.quarantine_time).desc())
        .limit(limit)
        .cte("grouped")
    )
    is_sample = and_(letter.execution_id == grouped.c.execution_id, letter.number == grouped.c.number)
    return (
        select(
            *_LISTED,
            grouped.c.count,
            _in_core_form(grouped.c.first_time),
            _in_core_form(grouped.c.last_time),
            grouped.c.workflows,
        )
        .join(grouped, is_sample)
        .order_by(grouped.c.last_time.desc())
    )


def _of(workspace: str, conditions: Sequence[Condition]) -> list[ColumnElement[bool]]:
    return [dead_letters.c.workspace == workspace, *(_FILTERED.holds(condition) for condition in conditions)]
