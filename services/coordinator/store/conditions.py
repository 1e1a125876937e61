"""Lists of executions, approvals and dead letters under conditions, composed with SQLAlchemy Core.

`Condition` of reads.proto defines what a condition means; api's `rpc/filters.py` does the same in memory. A comparison
with a column that is NULL is NULL and selects nothing, so only negations have to handle NULL.

Hazard: there is no index on columns that change, on purpose. A condition on any other column than the workspace reads
along (workspace, execution_id) until the page is full.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import DateTime, Integer, Select, String, Text, Uuid, and_, cast, collate, func, or_, select, true
from sqlalchemy.sql.elements import ColumnElement

from services.coordinator.store.tables import approvals, executions
from windlass.api.v1.resources_pb2 import Execution
from windlass.coordinator.v1.reads_pb2 import Condition, ListApprovalsRequest, ListExecutionsRequest, Pattern

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


class Filtered:
    """A table whose rows are listed under conditions."""

    def __init__(
        self,
        columns: Mapping[str, ColumnElement[Any]],
        *,
        nothing: Mapping[str, Any] = MappingProxyType({}),
        labels: ColumnElement[Any] | None = None,
        lists: Mapping[str, ColumnElement[Any]] = MappingProxyType({}),
    ) -> None:
        """`nothing` has the values that mean "absent" in a row where the column is not NULL. `labels` is an object in
        JSON, whose members are fields. `lists` are lists of texts in JSON, which are compared with one of them."""
        self._columns = columns
        self._nothing = nothing
        self._labels = labels
        self._lists = lists

    def holds(self, condition: Condition) -> ColumnElement[bool]:
        form = condition.WhichOneof("form")
        if form == "negated":
            # The negation must hold for an absent value. NOT NULL would be NULL, but NULL IS NOT TRUE is true.
            return self.holds(condition.negated).is_not(true())
        if form == "all_of":
            return and_(*self._each(condition.all_of.conditions))
        if form == "any_of":
            return or_(*self._each(condition.any_of.conditions))
        if form == "present":
            if (entries := self._lists.get(condition.present)) is not None:
                return func.jsonb_array_length(entries) > 0
            return self._there(condition.present).is_not(None)
        return self._comparison(condition) if form is None else self._likeness(condition.pattern)

    def _each(self, conditions: Sequence[Condition]) -> list[ColumnElement[bool]]:
        if not conditions:
            raise ConditionUnknown("there is nothing to join")
        return [self.holds(each) for each in conditions]

    def _comparison(self, condition: Condition) -> ColumnElement[bool]:
        compare = _OPERATORS.get(condition.operator)
        if compare is None:
            raise ConditionUnknown(f"operator {condition.operator}")
        if (entries := self._lists.get(condition.field)) is not None:
            return _has(entries, compare, condition)
        there = self._there(condition.field)
        if compare in (operator.eq, operator.ne):
            is_nothing = condition.value == "" == self._nothing.get(condition.field)
            value = None if is_nothing else _value(condition.field, there, condition.value)
            if compare is operator.ne:
                return there.is_distinct_from(value)
            return there.is_(None) if value is None else there == value
        # Texts are compared by code points, as in memory. The database's own order is that of some language.
        ordered = collate(there, "C") if isinstance(there.type, Text) else there
        compared: ColumnElement[bool] = compare(ordered, _value(condition.field, there, condition.value))
        return compared

    def _likeness(self, pattern: Pattern) -> ColumnElement[bool]:
        there = self._there(pattern.field)
        if not isinstance(there.type, Text):
            raise ConditionUnknown(f"{pattern.field} is no text")
        if pattern.open_start and pattern.open_end:
            return there.contains(pattern.text, autoescape=True)
        if pattern.open_start:
            return there.endswith(pattern.text, autoescape=True)
        return there.startswith(pattern.text, autoescape=True)

    def _there(self, field: str) -> ColumnElement[Any]:
        """The value of the row; NULL where it has none."""
        if self._labels is not None and field.startswith(_LABELS):
            label: ColumnElement[Any] = self._labels[field.removeprefix(_LABELS)].astext
            return label
        column = self._columns.get(field)
        if column is None:
            raise ConditionUnknown(field)
        if field in self._nothing:
            return func.nullif(column, self._nothing[field], type_=column.type)
        return column


_NAMES: Final = ("state", "workflow", "version", "priority", "create_time", "start_time", "end_time")
_RELATED: Final = ("parent_execution_id", "origin_execution_id", "imported_execution_id")
_EXECUTIONS: Final = Filtered(
    {
        **{name: executions.c[name] for name in (*_NAMES, *_RELATED)},
        "error.type": executions.c.error_type,
        "error.node": executions.c.error_node,
        "error.message": executions.c.error_message,
        "trigger.type": executions.c.trigger_type,
        "trigger.caller": executions.c.caller,
    },
    nothing={
        "error.type": "",
        "error.node": "",
        "error.message": "",
        "trigger.type": Execution.Trigger.TYPE_UNSPECIFIED,
        "trigger.caller": "",
        **dict.fromkeys(_RELATED, ""),
    },
    labels=executions.c.labels,
)
_APPROVAL_NAMES: Final = ("state", "workflow", "node", "title", "create_time", "expire_time")
_APPROVALS: Final = Filtered(
    {**{name: approvals.c[name] for name in _APPROVAL_NAMES}, "execution_id": cast(approvals.c.execution_id, Text)},
    lists={"assignee": approvals.c.assignees},
)


def execution_list(request: ListExecutionsRequest) -> Select[str]:
    """The ids of one page."""
    key = executions.c.execution_id
    statement = select(cast(key, String)).where(executions.c.workspace == request.workspace)
    if request.from_execution_id:
        start = cast(request.from_execution_id, Uuid(as_uuid=False))
        statement = statement.where(key > start if request.ascending else key < start)
    for condition in request.conditions:
        statement = statement.where(_EXECUTIONS.holds(condition))
    return statement.order_by(key.asc() if request.ascending else key.desc()).limit(request.limit)


def approval_list(request: ListApprovalsRequest, after: tuple[str, int]) -> Select[str, int]:
    """The ids of one page, as execution and number. `after` an empty id is the newest. Nobody can decide an approval of
    an imported execution, so they are left out."""
    id_, number = approvals.c.execution_id, approvals.c.number
    is_import = and_(executions.c.workspace == request.workspace, executions.c.imported_execution_id != "")
    statement = select(cast(id_, String), number).where(
        approvals.c.workspace == request.workspace, id_.not_in(select(executions.c.execution_id).where(is_import))
    )
    if after[0]:
        start = cast(after[0], Uuid(as_uuid=False))
        statement = statement.where(or_(id_ < start, and_(id_ == start, number > after[1])))
    for condition in request.conditions:
        statement = statement.where(_APPROVALS.holds(condition))
    return statement.order_by(id_.desc(), number).limit(request.limit)


def _has(entries: ColumnElement[Any], compare: Callable[[Any, Any], Any], condition: Condition) -> ColumnElement[bool]:
    # The operator finds an element of a list as well as a key.
    has: ColumnElement[bool] = entries.has_key(condition.value)
    if compare is operator.eq:
        return has
    if compare is operator.ne:
        return ~has
    raise ConditionUnknown(f"{condition.field} is a list, which has no order")


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
