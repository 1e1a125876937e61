"""Lists of executions under conditions, composed with SQLAlchemy Core.

`Condition` of reads.proto defines what a condition means; api's `rpc/filters.py` does the same in memory. A comparison
with a column that is NULL is NULL and selects nothing, so only negations have to handle NULL.

Hazard: there is no index on columns that change, on purpose. A condition on any other column than the workspace reads
along (workspace, execution_id) until the page is full.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import DateTime, Integer, Select, String, Text, Uuid, and_, cast, collate, func, or_, select, true
from sqlalchemy.sql.elements import ColumnElement

from services.coordinator.store.tables import executions
from windlass.api.v1.resources_pb2 import Execution
from windlass.coordinator.v1.reads_pb2 import Condition, ListExecutionsRequest, Pattern

_NAMES: Final = ("state", "workflow", "version", "priority", "create_time", "start_time", "end_time")
_COLUMNS: Final = {
    **{name: executions.c[name] for name in (*_NAMES, "parent_execution_id")},
    "error.type": executions.c.error_type,
    "error.node": executions.c.error_node,
    "error.message": executions.c.error_message,
    "trigger.type": executions.c.trigger_type,
    "trigger.caller": executions.c.caller,
}
# The values that mean "absent" in a row where the column is not NULL.
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
    """A form, a field or a value that is not known here; perhaps a newer version sent it."""


def execution_list(request: ListExecutionsRequest) -> Select[str]:
    """The ids of one page."""
    key = executions.c.execution_id
    statement = select(cast(key, String)).where(executions.c.workspace == request.workspace)
    if request.from_execution_id:
        start = cast(request.from_execution_id, Uuid(as_uuid=False))
        statement = statement.where(key > start if request.ascending else key < start)
    for condition in request.conditions:
        statement = statement.where(_holds(condition))
    return statement.order_by(key.asc() if request.ascending else key.desc()).limit(request.limit)


def _holds(condition: Condition) -> ColumnElement[bool]:
    form = condition.WhichOneof("form")
    if form == "negated":
        # The negation must hold for an absent value. NOT NULL would be NULL, but NULL IS NOT TRUE is true.
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
    # Texts are compared by code points, as in memory. The database's own order is that of some language.
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
    """The value of the execution; NULL where it has none."""
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
