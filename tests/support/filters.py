"""Filters of executions, made at random as trees, and written down as a caller would write them."""

import re
from typing import assert_never

from hypothesis import strategies as st

from services.api.core.filter_values import STATES, TRIGGERS
from services.api.core.filters import (
    FIELDS,
    AllOf,
    AnyOf,
    Condition,
    FieldKind,
    Filter,
    Not,
    Operator,
    Pattern,
    Present,
)

# Texts with special meaning in grammars and statements; few, so that a filter and an execution meet often.
TEXTS = ("", "a", "b", "ab", "aB", "Ä", "a%b", "a_b", "a/b", "a*b", "*", 'say "hi"', "it's", "back\\slash", "🦉", "OR")
LABEL_KEYS = ("region", "app.io/name", "an odd: key", "-x")
NUMBERS = ("0", "1", "2", "3", "-1")
TIMES = (
    "0001-01-01T00:00:00+14:00",
    "2026-11-01T00:00:00Z",
    "2026-11-01T00:00:00.000001Z",
    "2026-11-01T01:30:00+01:30",
    "2026-11-02T00:00:00Z",
    "9999-12-31T23:59:59-14:00",
)
# There is one for each way in which a caller is likely to get a filter wrong.
FAULTY_FILTERS = (
    "password = x",
    "failed",
    "state = FAILED OR",
    "(version = 1",
    'workflow = "x',
    "create_time > now()",
    "workflow = a*b",
    "(" * 4_096,
    "version = 1 " * 65,
    " " * 4_097,
)
_VALUES = {
    FieldKind.STATE: sorted(STATES),
    FieldKind.TRIGGER: sorted(TRIGGERS),
    FieldKind.NUMBER: NUMBERS,
    FieldKind.TIME: TIMES,
    FieldKind.TEXT: TEXTS,
    FieldKind.LABEL: TEXTS,
}
_KINDS = {**FIELDS, **{f"labels.{key}": FieldKind.LABEL for key in LABEL_KEYS}}
_EQUALITY = (Operator.EQUAL, Operator.NOT_EQUAL)
_DEPTH = 3


def _condition(field: str) -> st.SearchStrategy[Filter]:
    is_enum = _KINDS[field] in (FieldKind.STATE, FieldKind.TRIGGER)
    operators = st.sampled_from(_EQUALITY if is_enum else tuple(Operator))
    return st.builds(Condition, st.just(field), operators, st.sampled_from(_VALUES[_KINDS[field]]))


def _pattern() -> st.SearchStrategy[Filter]:
    fields = [field for field, kind in _KINDS.items() if kind in (FieldKind.TEXT, FieldKind.LABEL)]
    openings = st.sampled_from([(True, True), (True, False), (False, True)])
    texts = st.sampled_from([text for text in TEXTS if text])
    return st.builds(
        lambda field, text, opening: Pattern(field, text, *opening), st.sampled_from(fields), texts, openings
    )


def trees(depth: int = _DEPTH) -> st.SearchStrategy[Filter]:
    leaf = st.one_of(
        st.sampled_from(sorted(_KINDS)).flatmap(_condition),
        st.builds(Present, st.sampled_from(sorted(_KINDS))),
        _pattern(),
    )
    if depth == 0:
        return leaf
    inside = trees(depth - 1)
    several = st.lists(inside, min_size=2, max_size=3).map(tuple)
    return st.one_of(leaf, st.builds(Not, inside), st.builds(AllOf, several), st.builds(AnyOf, several))


def written(filter_: Filter) -> str:
    """The filter as text, with parentheses around everything that is made of several parts."""
    match filter_:
        case Condition(field, operator, value):
            return f"{_field(field)} {operator.value} {_quoted(value)}"
        case Present(field):
            return f"{_field(field)}:*"
        case Pattern(field, text, is_start_open, is_end_open):
            inside = f"{'*' * is_start_open}{_escaped(text)}{'*' * is_end_open}"
            return f'{_field(field)} = "{inside}"'
        case Not(inner):
            return f"NOT {_grouped(inner)}"
        case AllOf(inner):
            return " AND ".join(map(_grouped, inner))
        case AnyOf(inner):
            return " OR ".join(map(_grouped, inner))
        case _:
            assert_never(filter_)


def flat(filter_: Filter) -> tuple[Filter, ...]:
    """AND inside AND is one, as it is read; what is left stands as it was."""
    if isinstance(filter_, AllOf):
        return tuple(each for inner in filter_.filters for each in flat(inner))
    if isinstance(filter_, AnyOf):
        return (AnyOf(tuple(_one(flat(inner)) for inner in filter_.filters)),)
    if isinstance(filter_, Not):
        return (Not(_one(flat(filter_.filter))),)
    return (filter_,)


def _one(filters: tuple[Filter, ...]) -> Filter:
    return filters[0] if len(filters) == 1 else AllOf(filters)


def _grouped(filter_: Filter) -> str:
    text = written(filter_)
    return f"({text})" if isinstance(filter_, Not | AllOf | AnyOf) else text


def _field(field: str) -> str:
    key = field.removeprefix("labels.")
    return field if key == field or re.fullmatch(r"[\w./]+", key) else f"labels.{_quoted(key)}"


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    return re.sub(r'(["\\*])', r"\\\1", text)
