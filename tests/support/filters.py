"""Makes random filters of executions as conditions, and writes them down as a caller would."""

import re
from collections.abc import Sequence

from hypothesis import strategies as st

from services.api.rpc.filter_values import TRIGGERS
from services.api.rpc.filters import FIELDS, OPERATORS, STATES, FieldKind
from windlass.coordinator.v1.reads_pb2 import Condition, Conditions, Pattern

_COMPARATORS = {number: comparator for comparator, (number, _) in OPERATORS.items()}


def compared(field: str, comparator: str, value: str) -> Condition:
    return Condition(field=field, operator=OPERATORS[comparator][0], value=value)


def present(field: str) -> Condition:
    return Condition(present=field)


def pattern(field: str, text: str, open_: str) -> Condition:
    """A pattern whose start, end or both are open."""
    return Condition(pattern=Pattern(field=field, text=text, open_start="start" in open_, open_end="end" in open_))


def negated(condition: Condition) -> Condition:
    return Condition(negated=condition)


def all_of(conditions: Sequence[Condition]) -> Condition:
    return Condition(all_of=Conditions(conditions=conditions))


def any_of(conditions: Sequence[Condition]) -> Condition:
    return Condition(any_of=Conditions(conditions=conditions))


# Texts with a special meaning in grammars and statements. They are few, so that filters often match executions.
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
_DEPTH = 3


def _comparison(field: str) -> st.SearchStrategy[Condition]:
    is_enum = _KINDS[field] in (FieldKind.STATE, FieldKind.TRIGGER)
    comparators = st.sampled_from(("=", "!=") if is_enum else tuple(OPERATORS))
    return st.builds(compared, st.just(field), comparators, st.sampled_from(_VALUES[_KINDS[field]]))


def _pattern() -> st.SearchStrategy[Condition]:
    fields = [field for field, kind in _KINDS.items() if kind in (FieldKind.TEXT, FieldKind.LABEL)]
    texts = st.sampled_from([text for text in TEXTS if text])
    return st.builds(pattern, st.sampled_from(fields), texts, st.sampled_from(["start", "end", "start and end"]))


def trees(depth: int = _DEPTH) -> st.SearchStrategy[Condition]:
    leaf = st.one_of(
        st.sampled_from(sorted(_KINDS)).flatmap(_comparison),
        st.builds(present, st.sampled_from(sorted(_KINDS))),
        _pattern(),
    )
    if depth == 0:
        return leaf
    inside = trees(depth - 1)
    several = st.lists(inside, min_size=2, max_size=3)
    return st.one_of(leaf, st.builds(negated, inside), st.builds(all_of, several), st.builds(any_of, several))


def written(condition: Condition) -> str:
    """The filter as text, with parentheses around everything that is made of several parts."""
    match condition.WhichOneof("form"):
        case "present":
            return f"{_field(condition.present)}:*"
        case "pattern":
            like = condition.pattern
            inside = f"{'*' * like.open_start}{_escaped(like.text)}{'*' * like.open_end}"
            return f'{_field(like.field)} = "{inside}"'
        case "negated":
            return f"NOT {_grouped(condition.negated)}"
        case "all_of":
            return " AND ".join(map(_grouped, condition.all_of.conditions))
        case "any_of":
            return " OR ".join(map(_grouped, condition.any_of.conditions))
        case _:
            return f"{_field(condition.field)} {_COMPARATORS[condition.operator]} {_quoted(condition.value)}"


def flat(condition: Condition) -> list[Condition]:
    """Join each AND inside an AND with it, as the parser does. Everything else stays."""
    match condition.WhichOneof("form"):
        case "all_of":
            return [each for inner in condition.all_of.conditions for each in flat(inner)]
        case "any_of":
            return [any_of([_one(flat(inner)) for inner in condition.any_of.conditions])]
        case "negated":
            return [negated(_one(flat(condition.negated)))]
        case _:
            return [condition]


def _one(conditions: list[Condition]) -> Condition:
    return conditions[0] if len(conditions) == 1 else all_of(conditions)


def _grouped(condition: Condition) -> str:
    text = written(condition)
    return f"({text})" if condition.WhichOneof("form") in ("negated", "all_of", "any_of") else text


def _field(field: str) -> str:
    key = field.removeprefix("labels.")
    return field if key == field or re.fullmatch(r"[\w./]+", key) else f"labels.{_quoted(key)}"


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    return re.sub(r'(["\\*])', r"\\\1", text)
