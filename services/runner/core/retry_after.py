"""How long an HTTP answer asks us to wait (RFC 9110, 10.2.3): so many seconds, or until a date.

A date is counted from the date of the same answer where there is one: both are of one clock, whatever ours says.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from services.runner.core.untrusted import RETRY_AFTER_SECONDS_MAX

# Of the longest wait; whatever is longer is that.
_DIGITS_MAX = len(str(int(RETRY_AFTER_SECONDS_MAX)))


def seconds_asked(retry_after: str, date: str, now: datetime) -> float | None:
    """`date`: of the answer, by its header; `now` counts where it has none. None: nothing is asked, or in no form."""
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
    """In any of the three forms; the one without a zone means UTC, as they all do."""
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):  # a header is anybody's text
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
