"""Free JSON: its canonical form, and the values in it that cannot be stored.

PostgreSQL cannot store U+0000, JSON has no NaN, and parsers stop at some depth. Such values are named by their paths at
the border of a service, before any code inside meets them.
"""

import json
import math
from typing import Any, Final, NamedTuple

from windlass.definition.faults import Fault, Faults, child
from windlass.definition.limits import DEPTH_MAX, FAULTS_MAX

_WHOLE_MAX: Final = 2**53


def canonical(value: Any) -> bytes:
    """The same bytes for the same value: sorted keys, no white space, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def number(value: float) -> int | float:
    """The one form of a number from JSON, YAML or protobuf: a whole number is an int where a double holds every whole
    number; every other number is a double. NaN and infinities stay, for `sift` to name."""
    if -_WHOLE_MAX <= value <= _WHOLE_MAX:
        whole = int(value)
        return whole if whole == value else value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


class Sifted(NamedTuple):
    # The given value, with null for each value that cannot be stored.
    value: Any
    faults: Faults
    # The paths at which a value was taken out.
    gaps: set[str]


def sift(value: Any, path: str = "") -> Sifted:
    """Find NaN, infinities, NUL and too deep nesting in `value`, and take them out."""
    found = Sifted(None, Faults(), set())
    return found._replace(value=_sifted(value, path, 0, found))


def _is_sound(value: Any) -> bool:
    """Checked before a path is made, because there may be a million values."""
    kind = type(value)
    if kind is str:
        return "\x00" not in value
    if kind is float:
        return math.isfinite(value)
    return kind is not dict and kind is not list


def _sifted(value: Any, path: str, depth: int, found: Sifted) -> Any:
    """The recursion ends at DEPTH_MAX."""
    match value:
        case dict() | list() if depth >= DEPTH_MAX:
            fault = Fault(path[:200], "TOO_DEEP", f"JSON is nested deeper than {DEPTH_MAX}")
        case dict():
            found.faults.extend(Fault(path, "NUL", "a key contains a NUL character") for key in value if "\x00" in key)
            return {
                key: inner if _is_sound(inner) else _sifted(inner, child(path, key), depth + 1, found)
                for key, inner in value.items()
            }
        case list():
            return [
                inner if _is_sound(inner) else _sifted(inner, f"{path}[{index}]", depth + 1, found)
                for index, inner in enumerate(value)
            ]
        case float() if not math.isfinite(value):
            fault = Fault(path, "NOT_A_NUMBER", "JSON has no NaN and no infinities")
        case str() if "\x00" in value:
            fault = Fault(path, "NUL", "contains a NUL character")
        case _:
            return value
    if len(found.faults) < FAULTS_MAX:
        found.faults.append(fault)
        found.gaps.add(path)
    return None
