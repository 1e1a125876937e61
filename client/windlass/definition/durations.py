"""The one grammar of durations and the one of times: `1.5s`, `250ms`, `2h`, `30`, `2026-11-18T12:59:00Z`.

A duration is a number with a unit (ms, s, m, h, d); without a unit, and as a JSON number, it means seconds. It is 0 or
more and at most a year. A time is RFC 3339 with an offset. Both may come out of a rendered template, so white space
around them is ignored. Everything else raises ValueError with a message for the author of the workflow.

Hazards: all arithmetic is in whole microseconds, so that a duration compares equal to itself after any number of
conversions. All dates are in UTC, because the machine's time zone must not count.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

SECOND: Final = 1_000_000
# A year: longer waits belong to a schedule.
DURATION_MAX: Final = 365 * 86_400 * SECOND
# 9999-12-31T23:59:59Z. No protobuf Timestamp holds the year 10000; the last second leaves room for rounding.
TIME_MAX: Final = 253_402_300_799 * SECOND

_UNITS: Final = {
    "ms": SECOND // 1000,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
    "d": 86_400 * SECOND,
    "": SECOND,
}
_DURATION: Final = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?(ms|s|m|h|d|)")
_TIME: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?([Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_duration(written: object) -> int:
    """Microseconds."""
    length = _length(written)
    if length is None:
        raise ValueError(f"a duration is written like 30s, 1.5s, 250ms, 5m, 1h or 1d, not {_shown(written)}")
    if length > DURATION_MAX:
        raise ValueError(f"a duration is at most a year, not {_shown(written)}")
    return length


def _length(written: object) -> int | None:
    """Microseconds; None when it is no duration."""
    if isinstance(written, int | float) and not isinstance(written, bool):
        # A larger number stays over DURATION_MAX, and the multiplication below cannot overflow.
        seconds = float(min(written, DURATION_MAX))
        return round(seconds * SECOND) if seconds >= 0 else None
    parts = _DURATION.fullmatch(written.strip()) if isinstance(written, str) else None
    if parts is None:
        return None
    unit, fraction = _UNITS[parts[3]], parts[2] or ""
    return int(parts[1]) * unit + int(fraction.ljust(9, "0")) * unit // 1_000_000_000


def parse_time(written: object) -> int:
    """Microseconds since the Unix epoch; an earlier time is 0."""
    parts = _TIME.fullmatch(written.strip()) if isinstance(written, str) else None
    time = None if parts is None else _time(parts)
    if time is None:
        raise ValueError(f"a time is written like 2026-11-18T12:59:00Z, not {_shown(written)}")
    if time > TIME_MAX:
        raise ValueError(f"a time is at most 9999-12-31T23:59:59Z, not {_shown(written)}")
    return max(time, 0)


def _time(parts: re.Match[str]) -> int | None:
    """Microseconds since the Unix epoch; None when the calendar or the clock has no such time."""
    minutes = [int(part) for part in parts.groups()[:5]]
    second, fraction, zone, sign, zone_hours, zone_minutes = parts.groups()[5:]
    try:
        whole_minutes = datetime(*minutes, tzinfo=UTC) - _EPOCH  # type: ignore[arg-type, misc]
    except ValueError:
        return None
    # Second 60 is a leap second, which counts as the first second of the next minute.
    if int(second or 0) > 60:
        return None
    seconds = whole_minutes // timedelta(seconds=1) + int(second or 0)
    if zone not in "Zz":
        offset = int(zone_hours) * 3600 + int(zone_minutes) * 60
        seconds -= offset if sign == "+" else -offset
    return seconds * SECOND + int((fraction or "0").ljust(9, "0")) // 1000


def _shown(written: object) -> str:
    return repr(written if not isinstance(written, str) else written[:40])[:60]
