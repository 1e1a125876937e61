"""Lists of executions under conditions, composed with SQLAlchemy Core.

Hazard: a condition on anything but the workspace reads along (workspace, execution_id) until the page is full; there is
no index on columns that change, on purpose.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Column, DateTime, Integer, MetaData, Select, String, Table, Text, cast, select
from sqlalchemy.dialects.postgresql import JSONB, UUID
from sqlalchemy.sql.elements import ColumnElement

from services.coordinator.store.reads import Condition
from windlass.api.v1.resources_pb2 import Execution

_executions: Final = Table(
    "executions",
    MetaData(),
    Column("execution_id", UUID(as_uuid=False)),
    Column("workspace", Text),
    Column("workflow", Text),
    Column("version", Integer),
    Column("state", Text),
    Column("priority", Integer),
    Column("trigger_type", Integer),
    Column("create_time", DateTime(timezone=True)),
    Column("start_time", DateTime(timezone=True)),
    Column("end_time", DateTime(timezone=True)),
    Column("error_type", Text),
    Column("parent_execution_id", Text),
    Column("labels", JSONB),
)
_COLUMNS: Final = {
    "state": "state",
    "workflow": "workflow",
    "version": "version",
    "priority": "priority",
    "create_time": "create_time",
    "start_time": "start_time",
    "end_time": "end_time",
    "error.type": "error_type",
    "trigger.type": "trigger_type",
    "parent_execution_id": "parent_execution_id",
}
_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "EQUAL": operator.eq,
    "NOT_EQUAL": operator.ne,
    "LESS": operator.lt,
    "LESS_EQUAL": operator.le,
    "GREATER": operator.gt,
    "GREATER_EQUAL": operator.ge,
}


class ConditionUnknown(ValueError):
    """A field or a value that no column can be compared with."""


def execution_list(
    workspace: str,
    conditions: Sequence[Condition],
    *,
    from_execution_id: str,
    is_ascending: bool,
    limit: int,
) -> Select[str]:
    """The ids of one page."""
    key = _executions.c.execution_id
    statement = select(cast(key, String)).where(_executions.c.workspace == workspace)
    if from_execution_id:
        start = cast(from_execution_id, UUID(as_uuid=False))
        statement = statement.where(key > start if is_ascending else key < start)
    for condition in conditions:
        statement = statement.where(_comparison(condition))
    return statement.order_by(key.asc() if is_ascending else key.desc()).limit(limit)


def _comparison(condition: Condition) -> ColumnElement[bool]:
    compare = _OPERATORS[condition.operator]
    if condition.field.startswith("labels."):
        key = condition.field.removeprefix("labels.")
        found: ColumnElement[bool] = compare(_executions.c.labels[key].astext, condition.value)
        return found
    name = _COLUMNS.get(condition.field)
    if name is None:
        raise ConditionUnknown(condition.field)
    column = _executions.c[name]
    compared: ColumnElement[bool] = compare(column, _value(column, condition.value))
    return compared


def _value(column: Column[Any], text: Any) -> Any:
    try:
        if column.name == "trigger_type":
            return Execution.Trigger.Type.Value(text)
        if isinstance(column.type, Integer):
            return int(text)
        if isinstance(column.type, DateTime):
            return datetime.fromisoformat(text)
    except ValueError as fault:
        raise ConditionUnknown(f"{column.name} cannot be compared with {text!r}") from fault
    return text
