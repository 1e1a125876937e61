"""Encodes the outputs, cursors and rendered templates of modules as JSON.

Hazards: the encoder alone would write NaN as null, and would nest deeper than our readers follow. Both are refused
here, before a value is reported that nobody could read again.
"""

from __future__ import annotations

import math
from typing import Any

import orjson

from windlass.definition.limits import DEPTH_MAX
from windlass.sdk.errors import PermanentError


def encoded(value: Any, name: str, error_type: str, *, is_canonical: bool = False) -> bytes:
    """The value's bytes, with sorted keys when `is_canonical`. Raises a PermanentError of this type, which says by this
    name which value is not JSON, and why."""
    if value is None:
        return b"null"
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS if is_canonical else None)
        # The bytes are enough for almost every value: too few brackets to be deep, and no null that could be a NaN.
        may_be_deep = len(data) > 2 * DEPTH_MAX and data.count(b"[") + data.count(b"{") > DEPTH_MAX
        if may_be_deep or b"null" in data:
            look_into(value)
    except (TypeError, ValueError) as fault:
        raise PermanentError(f"{name} is not JSON: {fault}", type=error_type) from None
    return data


def look_into(value: Any) -> None:
    """Raises ValueError for what the encoder lets pass. Goes layer by layer: a deep value needs no deep stack."""
    layer, depth = [value], 0
    while layer:
        if any(isinstance(each, float) and not math.isfinite(each) for each in layer):
            raise ValueError("it holds NaN or an infinity")
        containers = [each for each in layer if isinstance(each, dict | list | tuple)]
        depth += 1
        if containers and depth > DEPTH_MAX:
            raise ValueError(f"it is nested deeper than {DEPTH_MAX}")
        layer = [item for each in containers for item in (each.values() if isinstance(each, dict) else each)]
