"""What one look at a value costs, by what a subschema compares it with, and what a schema's patterns are as machines.

A look is no constant: `enum` compares with one entry after the other, and numbers that are no integers are compared
digit by digit. So each keyword has a weight, in units of about 10 ns, which is what a look at a `type` takes. Patterns
cost by the character: an engine without backtracking may stand at each of a pattern's positions at once.

Hazards: all of this is measured on the library that validates, and rather too high than too low. A pattern is not
parsed: what looks like a repetition counts as one, also where it is none.
"""

import re
from typing import Any, Final

# Of all distinct patterns of a schema together; to compile them takes some 0.3 s and 100 MiB at the most.
PATTERN_STATES_MAX: Final = 700_000

_INTEGER: Final = 10
_FRACTION: Final = 20
# Written out it has hundreds of digits.
_EXTREME: Final = 1_000
_CONTAINER: Final = 10
# Lists within lists may all have one hash: then each is compared with each.
_UNIQUE: Final = 500
_TEXT_PER_UNIT: Final = 256
# So many values in an enum or a const cost a fault about as much as all else that it holds.
SHOWN_PER_FAULT: Final = 40
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")

_PATTERN_STATES: Final = 100
# \p{L} as bytes of UTF-8; any other that reaches beyond ASCII.
_CATEGORY_STATES: Final = 700
_WIDE_STATES: Final = 10
_TOKEN: Final = re.compile(
    r"(?P<times>\{(?P<least>\d+)(?:,(?P<most>\d*))?\})|(?P<open>\()(?:\?(?:P?<\w+>|[a-zA-Z-]*:?))?|(?P<close>\))|(?P<sign>[*+?])"
    r"|\\[ux]\{[0-9a-fA-F]+\}|\\[pP](?:\{[^}]*(?:\}|\Z)|.)|\\.|\[(?:\\.|[^\]\\])*(?:\]|\Z)|.",
    re.DOTALL,
)
_CATEGORY: Final = re.compile(r"\\[pP]")
_NARROW: Final = re.compile(r"\[(?!\^)[\x00-\x7f]*\]|\\[^DWSsB]|[\x00-\x2d\x2f-\x7f]", re.DOTALL)
# One thing again and again from end to end: whatever it meets, it stands at one position.
_STEADY: Final = re.compile(r"\^(?:\[(?:\\.|[^\]\\])+\]|\\?.)(?:[*+?]|\{\d+(?:,\d*)?\})\$", re.DOTALL)
_MUCH: Final = 10**9


def is_extreme(number: float) -> bool:
    return number != 0 and not 1e-30 < abs(number) < 1e30


def weight_of(schema: dict[str, Any]) -> int:
    """Of one look at a value, beyond the look itself; what applies in place or below is not in it."""
    weight = _UNIQUE if schema.get("uniqueItems") is True else 0
    if "const" in schema:
        weight += _weight_of_value(schema["const"])
    entries = schema.get("enum")
    # Of texts alone there is a table.
    if isinstance(entries, list) and not all(isinstance(entry, str) for entry in entries):
        weight += _weight_of_value(entries)
    bounds = [schema[keyword] for keyword in _BOUNDS if isinstance(schema.get(keyword), float)]
    weight += sum(map(_weight_of_value, bounds))
    if isinstance(schema.get("multipleOf"), int):
        weight += _INTEGER
    return weight + len(_of(schema, "dependentRequired")) + len(_of(schema, "dependencies"))


def positions_of(schema: dict[str, Any]) -> int:
    """For each character of a text, or of the names in an object."""
    return sum(1 if _STEADY.fullmatch(pattern) else _size(pattern, 1, 1) for pattern in patterns_of(schema))


def patterns_of(schema: dict[str, Any]) -> list[str]:
    alone, by_name = schema.get("pattern"), schema.get("patternProperties")
    return [*([alone] if isinstance(alone, str) else ()), *(by_name if isinstance(by_name, dict) else ())]


def states_of(pattern: str) -> int:
    """How large the machine is that a pattern is compiled to."""
    return _PATTERN_STATES + _size(pattern, _WIDE_STATES, _CATEGORY_STATES)


def faults_of(schema: dict[str, Any]) -> int:
    """How many it may have beyond one, or costs as much as: one carries what was compared, and each name that is
    required is one.
    """
    shown = sum(_values_in(schema[keyword]) for keyword in ("enum", "const") if keyword in schema)
    named = [schema.get("required"), *(_of(schema, "dependentRequired")), *(_of(schema, "dependencies"))]
    return shown // SHOWN_PER_FAULT + sum(len(names) for names in named if isinstance(names, list))


def _of(schema: dict[str, Any], keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return list(value.values()) if isinstance(value, dict) else []


def _values_in(value: Any) -> int:
    """A long text counts as several."""
    count, ahead = 0, [value]
    while ahead:
        inner = ahead.pop()
        count += 1 + len(inner) // _TEXT_PER_UNIT if isinstance(inner, str) else 1
        ahead.extend(inner.values() if isinstance(inner, dict) else inner if isinstance(inner, list) else ())
    return count


def _weight_of_value(value: Any) -> int:
    weight, ahead = 0, [value]
    while ahead:
        inner = ahead.pop()
        if isinstance(inner, dict):
            weight += _CONTAINER
            ahead.extend(inner.values())
        elif isinstance(inner, list):
            weight += _CONTAINER
            ahead.extend(inner)
        elif isinstance(inner, str):
            weight += 1 + len(inner) // _TEXT_PER_UNIT
        elif isinstance(inner, bool) or inner is None:
            weight += 1
        elif is_extreme(inner):
            weight += _EXTREME
        else:
            weight += _INTEGER if isinstance(inner, int) else _FRACTION
    return weight


def _size(pattern: str, wide: int, category: int) -> int:
    """How many things it is made of when repetitions are written out."""
    # Of each group that is open; what the next repetition repeats.
    totals, last = [0], 0
    for token in _TOKEN.finditer(pattern):
        if token["open"]:
            totals.append(1)
        elif token["close"]:
            last = totals.pop()
            totals = totals or [0]
            totals[-1] = min(totals[-1] + last, _MUCH)
        elif token["times"]:
            times = max(1, *(int(count[:9]) for count in (token["least"], token["most"]) if count))
            totals[-1] = min(totals[-1] + last * (times - 1), _MUCH)
            last = min(last * times, _MUCH)
        elif not token["sign"]:
            is_narrow = _NARROW.fullmatch(token[0])
            last = category if _CATEGORY.search(token[0]) else 1 if is_narrow else wide
            totals[-1] += last
    return min(sum(totals), _MUCH)
