"""Free JSON: what of it can be kept, and its one canonical form.

PostgreSQL cannot store U+0000, JSON knows no NaN, and nobody can read what is nested a thousand deep: such values
are named by their path here, at the edge, before anything inside meets them.
"""

import json
import math
from typing import Any, Final, NamedTuple

from windlass.definition.faults import Fault, Faults, child
from windlass.definition.limits import DEPTH_MAX, FAULTS_MAX

_WHOLE_MAX: Final = 2**53


def canonical(value: Any) -> bytes:
    """The same bytes for the same value: sorted keys, no white space, UTF-8."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def number(value: float) -> int | float:
    """The one form of a number, whichever way it came (JSON, YAML, protobuf's double): what is whole is an int as far
    as a double holds every whole number, everything else is a double. NaN and infinities stay, for `sift` to name."""
    if -_WHOLE_MAX <= value <= _WHOLE_MAX:
        whole = int(value)
        return whole if whole == value else value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


class Sifted(NamedTuple):
    # As it was given, with null for what cannot be kept.
    value: Any
    faults: Faults
    # Where something was taken out: of each fault that is told.
    gaps: set[str]


def sift(value: Any, path: str = "") -> Sifted:
    """NaN, infinities, NUL and too deep nesting anywhere in `value`, and what is left without them."""
    found = Sifted(None, Faults(), set())
    return found._replace(value=_sifted(value, path, 0, found))


def _is_sound(value: Any) -> bool:
    """Without a look inside: of a million values no path is made."""
    kind = type(value)
    if kind is str:
        return "\x00" not in value
    if kind is float:
        return math.isfinite(value)
    return kind is not dict and kind is not list


def _sifted(value: Any, path: str, depth: int, found: Sifted) -> Any:
    """Recursive, because it never goes deeper than DEPTH_MAX."""
    match value:
        case dict() | list() if depth >= DEPTH_MAX:
            fault = Fault(path[:200], "TOO_DEEP", f"JSON is nested deeper than {DEPTH_MAX}")
        case dict():
            found.faults.extend(
                Fault(path, "NUL", "a key contains a NUL character") for key in value if "\x00" in key
            )
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
            fault = Fault(path, "NOT_A_NUMBER", "NaN and infinities are no JSON")
        case str() if "\x00" in value:
            fault = Fault(path, "NUL", "contains a NUL character")
        case _:
            return value
    if len(found.faults) < FAULTS_MAX:
        found.faults.append(fault)
        found.gaps.add(path)
    return None
