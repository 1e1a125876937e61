"""A filter of executions: the conditions that reads.proto defines, and whether an execution in the queue matches them.

`filter_text.py` makes the conditions from the caller's text. Coordinators apply them to their table in SQL; executions
in the dispatchers' queue are matched here, as callers see them. Both mean the same
(`services/coordinator/store/conditions.py`); an integration test compares the two.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any, Final, NamedTuple, TypeAlias

from services.api.app import ports
from services.api.rpc.translate import listed
from windlass.api.v1.resources_pb2 import Execution
from windlass.coordinator.v1 import reads_pb2 as pb

LABELS: Final = "labels."


class FieldKind(Enum):
    STATE = auto()
    TRIGGER = auto()
    TEXT = auto()
    LABEL = auto()
    NUMBER = auto()
    TIME = auto()
    # Several texts. A comparison is true if it is true for one of them.
    LIST = auto()


class FilterFields(NamedTuple):
    """The fields of one kind of list."""

    kinds: Mapping[str, FieldKind]
    # The values of FieldKind.STATE, with other words for some of them.
    states: frozenset[str]
    synonyms: Mapping[str, str]
    has_labels: bool

    def kind_of(self, field: str) -> FieldKind | None:
        """None: no field has this name."""
        if self.has_labels and field.startswith(LABELS) and field != LABELS:
            return FieldKind.LABEL
        return self.kinds.get(field)

    @property
    def names(self) -> str:
        return ", ".join((*self.kinds, *([f"{LABELS}<key>"] if self.has_labels else [])))


FIELDS: Final[Mapping[str, FieldKind]] = {
    "state": FieldKind.STATE,
    "workflow": FieldKind.TEXT,
    "version": FieldKind.NUMBER,
    "priority": FieldKind.NUMBER,
    "create_time": FieldKind.TIME,
    "start_time": FieldKind.TIME,
    "end_time": FieldKind.TIME,
    "error.type": FieldKind.TEXT,
    "error.node": FieldKind.TEXT,
    "error.message": FieldKind.TEXT,
    "trigger.type": FieldKind.TRIGGER,
    "trigger.caller": FieldKind.TEXT,
    "parent_execution_id": FieldKind.TEXT,
    "origin_execution_id": FieldKind.TEXT,
    "imported_execution_id": FieldKind.TEXT,
}
STATES: Final = frozenset({"PENDING", "RUNNING", "WAITING", "PAUSED", "SUCCESS", "FAILED", "CANCELLED", "TIMEOUT"})
OF_EXECUTIONS: Final = FilterFields(FIELDS, STATES, {"COMPLETED": "SUCCESS"}, has_labels=True)
TEXTS: Final = frozenset({FieldKind.TEXT, FieldKind.LABEL})

Fields: TypeAlias = Mapping[str, str | int | datetime]
# Texts are ordered by code points.
OPERATORS: Final[Mapping[str, tuple[pb.Condition.Operator.ValueType, Callable[[Any, Any], bool]]]] = {
    "=": (pb.Condition.EQUAL, operator.eq),
    "!=": (pb.Condition.NOT_EQUAL, operator.ne),
    "<": (pb.Condition.LESS, operator.lt),
    "<=": (pb.Condition.LESS_EQUAL, operator.le),
    ">": (pb.Condition.GREATER, operator.gt),
    ">=": (pb.Condition.GREATER_EQUAL, operator.ge),
}
_COMPARISONS: Final = dict(OPERATORS.values())


class ExecutionFilter:
    """All conditions must match."""

    def __init__(self, conditions: Sequence[pb.Condition]) -> None:
        self.conditions: Final = conditions
        # If only a value has this text, the coordinators are asked in vain, which does no harm.
        self._asks_for_start = any('"start_time"' in str(each) for each in conditions)

    def matches(self, execution: ports.ExecutionView) -> bool:
        return not self.conditions or hold(self.conditions, fields_of(execution))

    def may_match(self, row: ports.ExecutionView) -> bool:
        return (row.is_given_up and self._asks_for_start) or self.matches(row)


def read_time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def fields_of(execution: ports.ExecutionView) -> Fields:
    """The fields by the names that filters use. Absent fields are left out; an empty text is absent, except a label."""
    shown = listed(execution)
    texts = {
        "error.type": shown.error.type,
        "error.node": shown.error.node,
        "error.message": shown.error.message,
        "trigger.caller": shown.trigger.caller,
        "parent_execution_id": shown.parent_execution_id,
        "origin_execution_id": shown.origin_execution_id,
        "imported_execution_id": shown.imported_execution_id,
    }
    fields: dict[str, str | int | datetime] = {
        "state": Execution.State.Name(shown.state),
        "workflow": shown.workflow,
        "version": shown.version,
        "priority": shown.priority,
        **{name: text for name, text in texts.items() if text},
        **{f"{LABELS}{key}": value for key, value in shown.labels.items()},
    }
    for name in ("create_time", "start_time", "end_time"):
        if shown.HasField(name):
            fields[name] = getattr(shown, name).ToDatetime(UTC)
    if shown.trigger.type:
        fields["trigger.type"] = Execution.Trigger.Type.Name(shown.trigger.type)
    return fields


def hold(conditions: Sequence[pb.Condition], fields: Fields) -> bool:
    return all(_holds(each, fields) for each in conditions)


def _holds(condition: pb.Condition, fields: Fields) -> bool:
    match condition.WhichOneof("form"):
        case "negated":
            return not _holds(condition.negated, fields)
        case "all_of":
            return hold(condition.all_of.conditions, fields)
        case "any_of":
            return any(_holds(each, fields) for each in condition.any_of.conditions)
        case "present":
            return condition.present in fields
        case "pattern":
            return _is_like(condition.pattern, fields.get(condition.pattern.field))
        case _:
            return _compared(condition, fields.get(condition.field))


def _compared(condition: pb.Condition, have: str | int | datetime | None) -> bool:
    compare = _COMPARISONS[condition.operator]
    if have is None:
        is_equal = not condition.value and OF_EXECUTIONS.kind_of(condition.field) is FieldKind.TEXT
        return {operator.eq: is_equal, operator.ne: not is_equal}.get(compare, False)
    if isinstance(have, int):
        return compare(have, int(condition.value))
    if isinstance(have, datetime):
        return compare(have, read_time(condition.value))
    return compare(have, condition.value)


def _is_like(pattern: pb.Pattern, have: str | int | datetime | None) -> bool:
    if not isinstance(have, str):
        return False
    if pattern.open_start:
        return pattern.text in have if pattern.open_end else have.endswith(pattern.text)
    return have.startswith(pattern.text)
