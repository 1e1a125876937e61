"""Durations and instants as definitions write them: `1.5s`, `2h`, `2026-11-18T12:59:00Z`.

Hazards: `ValueError` for anything else, with a message fit for the author of the workflow: the text may come out of a
template. No calendar library: it would bring the machine's clock and time zone within reach.
"""

import re

from services.coordinator.core.values import INSTANT_MAX, SECOND, SPAN_MAX, Instant, Span

_UNITS: dict[str, int] = {
    "ms": SECOND // 1000,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
    "d": 86_400 * SECOND,
    "": SECOND,
}
_SPAN = re.compile(r"(\d{1,12})(?:\.(\d{1,9}))?(ms|s|m|h|d|)")
_INSTANT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?([Zz]|([+-])(\d\d):(\d\d))"
)
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def parse_span(text: object) -> Span:
    """A number means seconds."""
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(  # noqa: TRY004 - text of the author's, not a caller's type
            f"a duration is text like 30s, not {text!r}"
        )
    if isinstance(text, float):
        text = f"{text:f}".rstrip("0").rstrip(".")
    match = _SPAN.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"not a duration: {str(text)[:40]!r}; write 1.5s, 500ms, 2m, 3h or 1d")
    whole, fraction, unit = match.groups()
    factor = _UNITS[unit]
    span = int(whole) * factor + int((fraction or "0").ljust(9, "0")) * factor // 1_000_000_000
    if span > SPAN_MAX:
        raise ValueError(f"a duration is at most a year: {str(text)[:40]!r}")
    return span


def parse_instant(text: object, *, may_cut: bool = False) -> Instant:
    """`may_cut`: what lies beyond the last instant counts as that one, since there is nobody to refuse it to."""
    match = _INSTANT.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"not a time: {str(text)[:40]!r}; write 2026-11-18T12:59:00Z")
    year, month, day, hour, minute = (int(part) for part in match.groups()[:5])
    second, fraction, zone, sign, zone_hours, zone_minutes = match.groups()[5:]
    is_on_calendar = 1 <= month <= 12 and 1 <= day <= _days_of(year, month)
    # 60: a leap second, which counts as the first of the next minute.
    if not (is_on_calendar and hour < 24 and minute < 60 and int(second or 0) <= 60):
        raise ValueError(f"not a time: {match.group()!r}")
    seconds = _days_since_epoch(year, month, day) * 86_400 + hour * 3600 + minute * 60 + int(second or 0)
    if zone not in "Zz":
        offset = int(zone_hours) * 3600 + int(zone_minutes) * 60
        seconds -= offset if sign == "+" else -offset
    instant = seconds * SECOND + int((fraction or "0").ljust(9, "0")) // 1000
    if instant > INSTANT_MAX and not may_cut:
        raise ValueError(f"a time is at most 9999-12-31T23:59:59Z: {match.group()!r}")
    return min(max(instant, 0), INSTANT_MAX)


def _days_of(year: int, month: int) -> int:
    is_leap_year = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return _MONTH_DAYS[month - 1] - (month == 2 and not is_leap_year)


def _days_since_epoch(year: int, month: int, day: int) -> int:
    """Days of the Gregorian calendar since 1970-01-01, counted in years that begin in March, so that the leap day
    comes last."""
    year -= month < 3
    month_from_march = (month + 9) % 12
    day_of_year = (153 * month_from_march + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + day_of_year - 719_468
