"""How long an HTTP answer asks us to wait (RFC 9110, 10.2.3): a number of seconds, or until a date.

The wait until a date counts from the Date header of the same answer, if it has one: both come from the same clock.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from services.runner.core.untrusted import RETRY_AFTER_SECONDS_MAX

# A number with more digits is over the maximum.
_DIGITS_MAX = len(str(int(RETRY_AFTER_SECONDS_MAX)))


def seconds_asked(retry_after: str, date: str, now: datetime) -> float | None:
    """The wait that the headers Retry-After and Date ask for; None when it cannot be read. `now` replaces the Date."""
    if retry_after.isascii() and retry_after.isdecimal():
        digits = retry_after.lstrip("0")
        seconds = float(digits or 0) if len(digits) <= _DIGITS_MAX else RETRY_AFTER_SECONDS_MAX
    else:
        until = _http_date(retry_after)
        if until is None:
            return None
        seconds = max(0.0, (until - (_http_date(date) or now)).total_seconds())
    return min(seconds, RETRY_AFTER_SECONDS_MAX)


def _http_date(text: str) -> datetime | None:
    """Read a date in any of the three forms of HTTP. All of them mean UTC, also the one that names no zone."""
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):  # a header is anybody's text
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
