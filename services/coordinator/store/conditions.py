"""Lists of executions, and of dead letters, under conditions, composed with SQLAlchemy Core.

`Condition` of reads.proto defines what a condition means; api's `rpc/filters.py` does the same in memory. A comparison
with a column that is NULL is NULL and selects nothing, so only negations have to handle NULL.

Hazard: there is no index on columns that change, on purpose. A condition on any other column than the workspace reads
along (workspace, execution_id) until the page is full.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import DateTime, Integer, Select, String, Text, Uuid, and_, cast, collate, func, or_, select, true
from sqlalchemy.sql.elements import ColumnElement

from services.coordinator.store.tables import executions
from windlass.api.v1.resources_pb2 import Execution
from windlass.coordinator.v1.reads_pb2 import Condition, ListExecutionsRequest, Pattern


class FilterFields(NamedTuple):
    """What the fields of a condition mean in a table."""

    columns: Mapping[str, ColumnElement[Any]]
    # The values that mean "absent" in a row where the column is not NULL.
    nothing: Mapping[str, str | int]
    # Holds a value for each key of `labels.<key>`.
    labels: ColumnElement[Any] | None = None


_NAMES: Final = ("state", "workflow", "version", "priority", "create_time", "start_time", "end_time")
_EXECUTIONS: Final = FilterFields(
    {
        **{name: executions.c[name] for name in (*_NAMES, "parent_execution_id")},
        "error.type": executions.c.error_type,
        "error.node": executions.c.error_node,
        "error.message": executions.c.error_message,
        "trigger.type": executions.c.trigger_type,
        "trigger.caller": executions.c.caller,
    },
    {
        "error.type": "",
        "error.node": "",
        "error.message": "",
        "trigger.type": Execution.Trigger.TYPE_UNSPECIFIED,
        "trigger.caller": "",
        "parent_execution_id": "",
    },
    executions.c.labels,
)
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
        statement = statement.where(holds(condition, _EXECUTIONS))
    return statement.order_by(key.asc() if request.ascending else key.desc()).limit(request.limit)


def holds(condition: Condition, fields: FilterFields) -> ColumnElement[bool]:
    form = condition.WhichOneof("form")
    if form == "negated":
        # The negation must hold for an absent value. NOT NULL would be NULL, but NULL IS NOT TRUE is true.
        return holds(condition.negated, fields).is_not(true())
    if form == "all_of":
        return and_(*_each(condition.all_of.conditions, fields))
    if form == "any_of":
        return or_(*_each(condition.any_of.conditions, fields))
    if form == "present":
        return _there(condition.present, fields).is_not(None)
    return _comparison(condition, fields) if form is None else _likeness(condition.pattern, fields)


def _each(conditions: Sequence[Condition], fields: FilterFields) -> list[ColumnElement[bool]]:
    if not conditions:
        raise ConditionUnknown("there is nothing to join")
    return [holds(each, fields) for each in conditions]


def _comparison(condition: Condition, fields: FilterFields) -> ColumnElement[bool]:
    compare = _OPERATORS.get(condition.operator)
    if compare is None:
        raise ConditionUnknown(f"operator {condition.operator}")
    there = _there(condition.field, fields)
    if compare in (operator.eq, operator.ne):
        is_nothing = condition.value == "" == fields.nothing.get(condition.field)
        value = None if is_nothing else _value(condition.field, there, condition.value)
        if compare is operator.ne:
            return there.is_distinct_from(value)
        return there.is_(None) if value is None else there == value
    # Texts are compared by code points, as in memory. The database's own order is that of some language.
    ordered = collate(there, "C") if isinstance(there.type, Text) else there
    compared: ColumnElement[bool] = compare(ordered, _value(condition.field, there, condition.value))
    return compared


def _likeness(pattern: Pattern, fields: FilterFields) -> ColumnElement[bool]:
    there = _there(pattern.field, fields)
    if not isinstance(there.type, Text):
        raise ConditionUnknown(f"{pattern.field} is no text")
    if pattern.open_start and pattern.open_end:
        return there.contains(pattern.text, autoescape=True)
    if pattern.open_start:
        return there.endswith(pattern.text, autoescape=True)
    return there.startswith(pattern.text, autoescape=True)


def _there(field: str, fields: FilterFields) -> ColumnElement[Any]:
    """The value of the row; NULL where it has none."""
    if fields.labels is not None and field.startswith(_LABELS):
        label: ColumnElement[Any] = fields.labels[field.removeprefix(_LABELS)].astext
        return label
    column = fields.columns.get(field)
    if column is None:
        raise ConditionUnknown(field)
    if field in fields.nothing:
        return func.nullif(column, fields.nothing[field], type_=column.type)
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
