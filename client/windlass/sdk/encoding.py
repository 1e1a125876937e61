"""JSON as it travels: what a module returns, what it keeps as its cursor, what its templates became.

Hazards: the encoder alone would write NaN as null, and would nest deeper than any reader of ours follows; both are
told here, before anything is reported that nobody could read again.
"""

from __future__ import annotations

import math
from typing import Any

import orjson

from windlass.definition.limits import DEPTH_MAX


class NotJson(ValueError):
    """The value is no JSON, with why."""


def encoded(value: Any, *, is_canonical: bool = False) -> bytes:
    """The value's bytes, with sorted keys when `is_canonical`. Raises NotJson."""
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS if is_canonical else None)
    except TypeError as error:
        raise NotJson(str(error)) from None
    # Almost every value is told by its bytes alone: too few brackets to be deep, and no null that was a NaN.
    if b"null" in data or data.count(b"[") + data.count(b"{") > DEPTH_MAX:
        _look_into(value)
    return data


def _look_into(value: Any) -> None:
    """Layer by layer, so that depth is not paid for in stack."""
    layer, depth = [value], 0
    while layer:
        if any(isinstance(each, float) and not math.isfinite(each) for each in layer):
            raise NotJson("it holds NaN or an infinity")
        containers = [each for each in layer if isinstance(each, dict | list | tuple)]
        depth += 1
        if containers and depth > DEPTH_MAX:
            raise NotJson(f"it is nested deeper than {DEPTH_MAX}")
        layer = [item for each in containers for item in (each.values() if isinstance(each, dict) else each)]
