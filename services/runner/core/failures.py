"""The classes of failures, which are all that the coordinator's retry policy looks at, and what HTTP answers mean."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum

from services.runner.core.untrusted import NAME_CHARACTERS_MAX, RETRY_AFTER_SECONDS_MAX, clamp_text


class FailureClass(StrEnum):
    """The same classes as in windlass.coordinator.v1.ErrorClass."""

    TRANSIENT = "TRANSIENT"
    PERMANENT = "PERMANENT"
    TIMEOUT = "TIMEOUT"
    CIRCUIT_OPEN = "CIRCUIT_OPEN"


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of an attempt."""

    failure_class: FailureClass
    type: str
    message: str
    retry_after_seconds: float | None = None


# Trying again cannot mend these: the module or its input is wrong.
_PERMANENT = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, ImportError)

# HTTP answers below 500 that ask for another try (RFC 9110, RFC 6585, RFC 8470).
_RETRIED_STATUSES = frozenset({408, 425, 429})
# A number of seconds with more digits is over the maximum.
_DIGITS_MAX = len(str(int(RETRY_AFTER_SECONDS_MAX)))


def of_exception(error: BaseException) -> Failure:
    """The failure for an exception of a module that is no ModuleError."""
    if isinstance(error, TimeoutError):
        message = clamp_text(error) or "something it waited for took too long"
        return Failure(FailureClass.TIMEOUT, "TIMEOUT", message)
    failure_class = FailureClass.PERMANENT if isinstance(error, _PERMANENT) else FailureClass.TRANSIENT
    name = clamp_text(type(error).__name__, NAME_CHARACTERS_MAX)
    return Failure(failure_class, name, clamp_text(error) or f"the module raised {name}")


def class_named(name: object) -> FailureClass:
    """The class of this name. An unknown name counts as TRANSIENT, which loses least."""
    return next((each for each in FailureClass if each.value == name), FailureClass.TRANSIENT)


def of_status(status: int) -> FailureClass | None:
    """The class of an HTTP answer; None when it is no failure."""
    if status < 400:
        return None
    if status >= 500 or status in _RETRIED_STATUSES:
        return FailureClass.TRANSIENT
    return FailureClass.PERMANENT


def seconds_asked(retry_after: str, date: str, now: datetime) -> float | None:
    """The wait that the headers Retry-After and Date ask for (RFC 9110, 10.2.3); None when it cannot be read.

    The wait until a date counts from the Date of the same answer, because both come from one clock, else from `now`."""
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
