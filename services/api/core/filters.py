"""A filter of executions as a tree, and whether an execution matches it.

A filter is a sequence of these nodes, all of which must match; `filter_text.py` parses it. The SQL of the coordinators
means the same (`services/coordinator/store/conditions.py`); an integration test compares the two.

There is no third truth value. A field that an execution does not have (no error, no parent, no end yet, no such label)
matches no comparison but `!=`, which is the opposite of `=`; `NOT` matches whatever its operand does not. A text field
is absent when it is empty. A label may be present and empty.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final, TypeAlias, assert_never


class FieldKind(Enum):
    STATE = auto()
    TRIGGER = auto()
    TEXT = auto()
    LABEL = auto()
    NUMBER = auto()
    TIME = auto()


LABELS: Final = "labels."
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
}
TEXTS: Final = frozenset({FieldKind.TEXT, FieldKind.LABEL})


class Operator(Enum):
    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="


@dataclass(frozen=True, slots=True)
class Condition:
    """`value` is text: a state by its name, a number in decimal, a time in RFC 3339 with an offset. Texts are ordered
    by code points."""

    field: str
    operator: Operator
    value: str


@dataclass(frozen=True, slots=True)
class Present:
    field: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text that ends with (start open), begins with (end open) or contains (both open) this text."""

    field: str
    text: str
    is_start_open: bool
    is_end_open: bool


@dataclass(frozen=True, slots=True)
class Not:
    filter: "Filter"


@dataclass(frozen=True, slots=True)
class AllOf:
    filters: tuple["Filter", ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    filters: tuple["Filter", ...]


Filter: TypeAlias = Condition | Present | Pattern | Not | AllOf | AnyOf
Row: TypeAlias = Mapping[str, str | int | datetime]

_COMPARISONS: Final[Mapping[Operator, Callable[[Any, Any], bool]]] = {
    Operator.EQUAL: operator.eq,
    Operator.NOT_EQUAL: operator.ne,
    Operator.LESS: operator.lt,
    Operator.LESS_EQUAL: operator.le,
    Operator.GREATER: operator.gt,
    Operator.GREATER_EQUAL: operator.ge,
}


def kind_of(field: str) -> FieldKind | None:
    """None: no field has this name."""
    if field.startswith(LABELS) and field != LABELS:
        return FieldKind.LABEL
    return FIELDS.get(field)


def read_time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def matches(filters: Sequence[Filter], row: Row) -> bool:
    """Whether an execution with these fields matches. `row` has no entry for a field that is absent."""
    return all(_holds(each, row) for each in filters)


def asks_of(filters: Sequence[Filter], field: str) -> bool:
    """Whether the filter uses this field."""
    return any(_asks(each, field) for each in filters)


def _holds(filter_: Filter, row: Row) -> bool:
    match filter_:
        case Condition():
            return _compared(filter_, row.get(filter_.field))
        case Present(field):
            return field in row
        case Pattern(field):
            return _is_like(filter_, row.get(field))
        case Not(inner):
            return not _holds(inner, row)
        case AllOf(inner):
            return all(_holds(each, row) for each in inner)
        case AnyOf(inner):
            return any(_holds(each, row) for each in inner)
        case _:
            assert_never(filter_)


def _asks(filter_: Filter, field: str) -> bool:
    match filter_:
        case Condition() | Present() | Pattern():
            return filter_.field == field
        case Not(inner):
            return _asks(inner, field)
        case AllOf(inner) | AnyOf(inner):
            return asks_of(inner, field)
        case _:
            assert_never(filter_)


def _compared(condition: Condition, have: str | int | datetime | None) -> bool:
    compare = _COMPARISONS[condition.operator]
    if have is None:
        is_equal = not condition.value and kind_of(condition.field) is FieldKind.TEXT
        return {Operator.EQUAL: is_equal, Operator.NOT_EQUAL: not is_equal}.get(condition.operator, False)
    if isinstance(have, int):
        return compare(have, int(condition.value))
    if isinstance(have, datetime):
        return compare(have, read_time(condition.value))
    return compare(have, condition.value)


def _is_like(pattern: Pattern, have: str | int | datetime | None) -> bool:
    if not isinstance(have, str):
        return False
    if pattern.is_start_open:
        return pattern.text in have if pattern.is_end_open else have.endswith(pattern.text)
    return have.startswith(pattern.text)
