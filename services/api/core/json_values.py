"""Free JSON: what of it can be kept, and its one canonical form.

PostgreSQL cannot store U+0000, JSON knows no NaN, and nobody can read what is nested a thousand deep: such values
are named by their path here, at the edge, before anything inside meets them.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any, Final

from services.api.core.faults import Fault, child

DEPTH_MAX: Final = 64


def canonical(value: Any) -> bytes:
    """The same bytes for the same value: sorted keys, no white space, UTF-8."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest(content: bytes) -> bytes:
    """SHA-256."""
    return hashlib.sha256(content).digest()


def faults_of(value: Any, path: str = "") -> Iterator[Fault]:
    """NaN, infinities, NUL and too deep nesting anywhere in `value`. Iterative: depth is what it looks for."""
    todo: list[tuple[Any, str, int]] = [(value, path, 0)]
    while todo:
        here, where, depth = todo.pop()
        if depth >= DEPTH_MAX and isinstance(here, dict | list):
            yield Fault(where[:200], "TOO_DEEP", f"JSON is nested deeper than {DEPTH_MAX}")
            continue
        if isinstance(here, dict):
            for key, inner in reversed(here.items()):
                if "\x00" in key:
                    yield Fault(where, "NUL", "a key contains a NUL character")
                todo.append((inner, child(where, key), depth + 1))
        elif isinstance(here, list):
            todo.extend(
                (inner, f"{where}[{index}]", depth + 1) for index, inner in reversed(list(enumerate(here)))
            )
        elif isinstance(here, float) and not math.isfinite(here):
            yield Fault(where, "NOT_A_NUMBER", "NaN and infinities are no JSON")
        elif isinstance(here, str) and "\x00" in here:
            yield Fault(where, "NUL", "contains a NUL character")
