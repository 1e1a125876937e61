"""What a list may be filtered by: AIP-160, the part of it that is comparisons joined with AND.

`state = FAILED AND workflow = "intake" AND labels.region = "eu" AND create_time > "2026-11-01T00:00:00Z"`.
Everything else (OR, NOT, brackets, functions, bare words) is refused by name rather than half understood. A parsed
filter is a plain list of conditions, all of which must hold; rows that no service has indexed are matched here.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Final, NamedTuple


class Operator(Enum):
    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="


class Condition(NamedTuple):
    """`value` as text: states by name, numbers in decimal, times as RFC 3339 with an offset."""

    field: str
    operator: Operator
    value: str


class FilterFault(NamedTuple):
    message: str


STATES: Final = frozenset(
    {"PENDING", "RUNNING", "WAITING", "PAUSED", "SUCCESS", "FAILED", "CANCELLED", "TIMEOUT"}
)
_SYNONYMS: Final = {"COMPLETED": "SUCCESS"}
TRIGGERS: Final = frozenset({"MANUAL", "CRON", "EVENT", "WEBHOOK", "QUEUE"})
_TEXTS: Final = frozenset({"workflow", "error.type", "parent_execution_id"})
_NUMBERS: Final = frozenset({"version", "priority"})
_TIMES: Final = frozenset({"create_time", "end_time"})
_FIELDS: Final = ("state", "trigger.type", *sorted(_TEXTS | _NUMBERS | _TIMES), "labels.<key>")
CONDITIONS_MAX: Final = 32

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<operator><=|>=|!=|=|<|>|:)|(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    r"""|(?P<bracket>[()])|(?P<word>[^\s"'()=<>!:]+))"""
)
_COMPARISONS: Final[Mapping[Operator, Callable[[Any, Any], bool]]] = {
    Operator.EQUAL: operator.eq,
    Operator.NOT_EQUAL: operator.ne,
    Operator.LESS: operator.lt,
    Operator.LESS_EQUAL: operator.le,
    Operator.GREATER: operator.gt,
    Operator.GREATER_EQUAL: operator.ge,
}
_EQUALITY: Final = frozenset({Operator.EQUAL, Operator.NOT_EQUAL})


def parse(text: str) -> Sequence[Condition] | FilterFault:
    """The conditions of a filter; none for the empty text."""
    tokens = _tokens(text)
    if isinstance(tokens, FilterFault):
        return tokens
    conditions: list[Condition] = []
    place = 0
    while place < len(tokens):
        if conditions:
            if tokens[place] != ("word", "AND"):
                return _unsupported(tokens[place][1])
            place += 1
        condition = _comparison(tokens[place : place + 3])
        if isinstance(condition, FilterFault):
            return condition
        conditions.append(condition)
        place += 3
    if len(conditions) > CONDITIONS_MAX:
        return FilterFault(f"{len(conditions)} comparisons; at most {CONDITIONS_MAX}")
    return conditions


def _tokens(text: str) -> list[tuple[str, str]] | FilterFault:
    found: list[tuple[str, str]] = []
    place = 0
    text = text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            return FilterFault(f"cannot be read from {text[place : place + 20].strip()!r} on")
        assert match.lastgroup is not None
        kind, token = match.lastgroup, match[match.lastgroup]
        found.append((kind, re.sub(r"\\(.)", r"\1", token[1:-1]) if kind == "quoted" else token))
        place = match.end()
    return found


def _comparison(tokens: Sequence[tuple[str, str]]) -> Condition | FilterFault:
    if not tokens:
        return FilterFault("a comparison is missing after AND")
    kind, field = tokens[0]
    if kind != "word" or field in ("NOT", "OR", "AND") or field.startswith("-"):
        return _unsupported(field)
    if len(tokens) < 3 or tokens[1][0] != "operator" or tokens[2][0] not in ("word", "quoted"):
        return FilterFault(
            f"{field[:40]!r} must be followed by a comparison and a value, like {field[:40]} = x"
        )
    if tokens[1][1] == ":":
        return _unsupported(":")
    return _checked(Condition(field, Operator(tokens[1][1]), tokens[2][1]))


def _checked(condition: Condition) -> Condition | FilterFault:
    field, compared_by, value = condition
    if field == "state" or field == "trigger.type":
        value = _SYNONYMS.get(value, value)
        known = STATES if field == "state" else TRIGGERS
        if value not in known:
            return FilterFault(f"{value[:40]!r} is no {field}; there are {', '.join(sorted(known))}")
    elif field in _NUMBERS:
        if re.fullmatch(r"[0-9]{1,9}", value) is None:
            return FilterFault(f"{field} is a number, not {value[:40]!r}")
    elif field in _TIMES:
        if read_time(value) is None:
            return FilterFault(f'{field} is a time like "2026-11-01T00:00:00Z", not {value[:40]!r}')
    elif field not in _TEXTS and not (field.startswith("labels.") and len(field) > len("labels.")):
        return FilterFault(f"{field[:40]!r} cannot be filtered by; there are {', '.join(_FIELDS)}")
    if compared_by not in _EQUALITY and field not in _NUMBERS | _TIMES:
        return FilterFault(f"{field[:40]} is compared by = or != only")
    return Condition(field, compared_by, value)


def _unsupported(token: str) -> FilterFault:
    return FilterFault(f"{token[:40]!r} is not supported here: a filter is comparisons joined with AND")


def read_time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def matches(conditions: Sequence[Condition], row: Mapping[str, str | int | datetime]) -> bool:
    """Whether a row with these fields fits. An absent field equals nothing, so only != holds of it."""
    return all(_holds(condition, row.get(condition.field)) for condition in conditions)


def _holds(condition: Condition, have: str | int | datetime | None) -> bool:
    if have is None:
        return condition.operator is Operator.NOT_EQUAL
    want: str | int | datetime | None = condition.value
    if isinstance(have, int):
        want = int(condition.value)
    elif isinstance(have, datetime):
        want = read_time(condition.value)
    return _COMPARISONS[condition.operator](have, want)
