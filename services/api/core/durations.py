"""Durations as people write them: "30s", "1.5s", "250ms", "5m", "1h", "1d"; a number means seconds.

Hazard: all arithmetic is in whole microseconds, so that a duration that was accepted compares equal to itself
after any number of conversions.
"""

import re
from typing import Final

_FORM: Final = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?(ms|s|m|h|d|)")
_MICROSECONDS: Final = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "": 1_000_000,
}
# A year: longer waits belong to a schedule.
DURATION_MAX: Final = 365 * 86_400_000_000


def microseconds(written: object) -> int | None:
    """The length of a duration that is 0 or more; None when it is none, or longer than a year."""
    if isinstance(written, bool) or not isinstance(written, str | int | float):
        return None
    if not isinstance(written, str):
        length = round(written * 1_000_000) if 0 <= written < 1e12 else -1
        return length if 0 <= length <= DURATION_MAX else None
    parts = _FORM.fullmatch(written)
    if parts is None:
        return None
    unit = _MICROSECONDS[parts[3]]
    fraction = parts[2] or ""
    length = int(parts[1]) * unit + int(fraction or 0) * unit // 10 ** len(fraction)
    return length if length <= DURATION_MAX else None
