"""Pages of runs, composed with SQLAlchemy Core: one statement for each kind of list and filter that occurs.

A page ends where the outputs of its runs reach a number of bytes. PostgreSQL knows the lengths without reading the
outputs.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    DateTime,
    Integer,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    extract,
    func,
    or_,
    select,
)

from services.chassis.postgres.compiled import Composed
from services.coordinator.core.projection import RUN_COLUMNS
from services.coordinator.store.tables import executions, runner_sessions, runs

READ: Final = (*RUN_COLUMNS, "effect_key")
EXTRA: Final = ("workspace", "execution_traceparent", "lease_time")

_AFTER: Final = bindparam("after", type_=Integer)
_EXECUTION: Final = bindparam("execution_id", type_=Uuid(as_uuid=False))
_OF_EXECUTION: Final = and_(runs.c.execution_id == _EXECUTION, runs.c.number > _AFTER)
# The runs after (execution, number), newest execution first.
_IN_WORKSPACE: Final = and_(
    executions.c.workspace == bindparam("workspace", type_=Text),
    or_(executions.c.execution_id < _EXECUTION, and_(executions.c.execution_id == _EXECUTION, runs.c.number > _AFTER)),
)


@functools.cache
def run_page(*, of_execution: bool, with_node: bool, with_state: bool) -> Composed:
    """Its parameters are `execution_id`, `after`, `most`, `bytes_most`; `workspace` unless it is of an execution; and
    `node` and `state` if it is with them."""
    order: list[Any] = [runs.c.number] if of_execution else [executions.c.execution_id.desc(), runs.c.number]
    output_bytes = func.coalesce(func.octet_length(runs.c.output), 0)
    bytes_before = func.sum(output_bytes).over(order_by=order, rows=(None, 0)) - output_bytes
    page = (
        select(runs.c.execution_id, runs.c.number, bytes_before.label("bytes_before"))
        .join(executions, executions.c.execution_id == runs.c.execution_id)
        .where(_OF_EXECUTION if of_execution else _IN_WORKSPACE)
        .order_by(*order)
        .limit(bindparam("most"))
    )
    if with_node:
        page = page.where(runs.c.node == bindparam("node"))
    if with_state:
        page = page.where(runs.c.state == bindparam("state"))
    found = page.cte("page")
    is_leased = or_(runs.c.state == "LEASED", runs.c.state == "RUNNING")
    return Composed(
        select(
            *(_in_core_form(runs.c[name]) for name in READ),
            executions.c.workspace,
            executions.c.traceparent,
            case((is_leased, _in_core_form(runner_sessions.c.lease_until))),
            select(func.count()).select_from(found).scalar_subquery(),
        )
        .select_from(found)
        .join(runs, and_(runs.c.execution_id == found.c.execution_id, runs.c.number == found.c.number))
        .join(executions, executions.c.execution_id == runs.c.execution_id)
        .outerjoin(runner_sessions, runner_sessions.c.instance_id == runs.c.instance_id)
        .where(found.c.bytes_before < bindparam("bytes_most", type_=BigInteger))
        .order_by(*order)
    )


def _in_core_form(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Ids as text, instants as microseconds since 1970."""
    if isinstance(column.type, Uuid):
        return cast(column, Text)
    if isinstance(column.type, DateTime):
        return cast(extract("epoch", column) * 1_000_000, BigInteger)
    return column
