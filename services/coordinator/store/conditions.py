"""Lists of executions under conditions, composed with SQLAlchemy Core.

`Condition` of reads.proto says what a condition means; api's `core/filters.py` means the same in memory. A comparison
with a column that is NULL is NULL here, which holds of nothing; only what negates has to say so, and does.

Hazard: a condition on anything but the workspace reads along (workspace, execution_id) until the page is full; there is
no index on columns that change, on purpose.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    DateTime,
    Integer,
    Select,
    String,
    Text,
    Uuid,
    and_,
    cast,
    collate,
    func,
    or_,
    select,
    true,
)
from sqlalchemy.sql.elements import ColumnElement

from services.coordinator.store.tables import executions
from windlass.api.v1.resources_pb2 import Execution
from windlass.coordinator.v1.reads_pb2 import Condition, Pattern

_COLUMNS: Final = {
    "state": executions.c.state,
    "workflow": executions.c.workflow,
    "version": executions.c.version,
    "priority": executions.c.priority,
    "create_time": executions.c.create_time,
    "start_time": executions.c.start_time,
    "end_time": executions.c.end_time,
    "error.type": executions.c.error_type,
    "error.node": executions.c.error_node,
    "error.message": executions.c.error_message,
    "trigger.type": executions.c.trigger_type,
    "trigger.caller": executions.c.caller,
    "parent_execution_id": executions.c.parent_execution_id,
}
# What may stand in a row instead of NULL where there is nothing.
_NOTHING: Final = {
    "error.type": "",
    "error.node": "",
    "error.message": "",
    "trigger.type": Execution.Trigger.TYPE_UNSPECIFIED,
    "trigger.caller": "",
    "parent_execution_id": "",
}
_LABELS: Final = "labels."
_OPERATORS: Final[dict[int, Callable[[Any, Any], Any]]] = {
    Condition.EQUAL: operator.eq,
    Condition.NOT_EQUAL: operator.ne,
    Condition.LESS: operator.lt,
    Condition.LESS_EQUAL: operator.le,
    Condition.GREATER: operator.gt,
    Condition.GREATER_EQUAL: operator.ge,
}


class ConditionUnknown(ValueError):
    """A form, a field or a value that no statement can be made of; of a version to come, perhaps."""


def execution_list(
    workspace: str,
    conditions: Sequence[Condition],
    *,
    from_execution_id: str,
    is_ascending: bool,
    limit: int,
) -> Select[str]:
    """The ids of one page."""
    key = executions.c.execution_id
    statement = select(cast(key, String)).where(executions.c.workspace == workspace)
    if from_execution_id:
        start = cast(from_execution_id, Uuid(as_uuid=False))
        statement = statement.where(key > start if is_ascending else key < start)
    for condition in conditions:
        statement = statement.where(_holds(condition))
    return statement.order_by(key.asc() if is_ascending else key.desc()).limit(limit)


def _holds(condition: Condition) -> ColumnElement[bool]:
    form = condition.WhichOneof("form")
    if form == "negated":
        # Of NULL this is true, as it is to be of what is absent; the database's own NOT of it is NULL.
        return _holds(condition.negated).is_not(true())
    if form == "all_of":
        return and_(*_each(condition.all_of.conditions))
    if form == "any_of":
        return or_(*_each(condition.any_of.conditions))
    if form == "present":
        return _there(condition.present).is_not(None)
    return _comparison(condition) if form is None else _likeness(condition.pattern)


def _each(conditions: Sequence[Condition]) -> list[ColumnElement[bool]]:
    if not conditions:
        raise ConditionUnknown("there is nothing to join")
    return [_holds(each) for each in conditions]


def _comparison(condition: Condition) -> ColumnElement[bool]:
    compare = _OPERATORS.get(condition.operator)
    if compare is None:
        raise ConditionUnknown(f"operator {condition.operator}")
    there = _there(condition.field)
    if compare in (operator.eq, operator.ne):
        is_nothing = condition.value == "" == _NOTHING.get(condition.field)
        value = None if is_nothing else _value(condition.field, there, condition.value)
        if compare is operator.ne:
            return there.is_distinct_from(value)
        return there.is_(None) if value is None else there == value
    # By code points, as it is in memory; the database's own order is that of some language.
    ordered = collate(there, "C") if isinstance(there.type, Text) else there
    compared: ColumnElement[bool] = compare(ordered, _value(condition.field, there, condition.value))
    return compared


def _likeness(pattern: Pattern) -> ColumnElement[bool]:
    there = _there(pattern.field)
    if not isinstance(there.type, Text):
        raise ConditionUnknown(f"{pattern.field} is no text")
    if pattern.open_start and pattern.open_end:
        return there.contains(pattern.text, autoescape=True)
    if pattern.open_start:
        return there.endswith(pattern.text, autoescape=True)
    return there.startswith(pattern.text, autoescape=True)


def _there(field: str) -> ColumnElement[Any]:
    """What the execution has; NULL where it has nothing."""
    if field.startswith(_LABELS):
        label: ColumnElement[Any] = executions.c.labels[field.removeprefix(_LABELS)].astext
        return label
    column = _COLUMNS.get(field)
    if column is None:
        raise ConditionUnknown(field)
    if field in _NOTHING:
        return func.nullif(column, _NOTHING[field], type_=column.type)
    return column


def _value(field: str, compared_with: ColumnElement[Any], text: str) -> Any:
    try:
        if field == "trigger.type":
            return Execution.Trigger.Type.Value(text)
        if isinstance(compared_with.type, Integer):
            return int(text)
        if isinstance(compared_with.type, DateTime):
            return datetime.fromisoformat(text)
    except ValueError as fault:
        raise ConditionUnknown(f"{field} cannot be compared with {text!r}") from fault
    return text
