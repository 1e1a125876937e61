"""The classes of failures. The coordinator's retry policy looks at nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from services.runner.core.untrusted import NAME_CHARACTERS_MAX, clamp_text


class ErrorClass(StrEnum):
    """The same classes as in windlass.coordinator.v1.ErrorClass."""

    TRANSIENT = "TRANSIENT"
    PERMANENT = "PERMANENT"
    TIMEOUT = "TIMEOUT"
    CIRCUIT_OPEN = "CIRCUIT_OPEN"


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt failed."""

    error_class: ErrorClass
    type: str
    message: str
    retry_after_seconds: float | None = None


# Trying again cannot mend these: the module or its input is wrong.
_PERMANENT = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, ImportError)

# HTTP answers below 500 that ask for another try (RFC 9110, RFC 6585, RFC 8470).
_RETRIED_STATUSES = frozenset({408, 425, 429})


def of_exception(error: BaseException) -> Failure:
    """The failure for an exception of a module that is no ModuleError."""
    if isinstance(error, TimeoutError):
        message = clamp_text(error) or "something it waited for took too long"
        return Failure(ErrorClass.TIMEOUT, "TIMEOUT", message)
    error_class = ErrorClass.PERMANENT if isinstance(error, _PERMANENT) else ErrorClass.TRANSIENT
    name = clamp_text(type(error).__name__, NAME_CHARACTERS_MAX)
    return Failure(error_class, name, clamp_text(error) or f"the module raised {name}")


def class_named(name: object) -> ErrorClass:
    """The class of this name. An unknown name counts as TRANSIENT, which loses least."""
    return next((each for each in ErrorClass if each.value == name), ErrorClass.TRANSIENT)


def of_status(status: int) -> ErrorClass | None:
    """The class of an HTTP answer; None when it is no failure."""
    if status < 400:
        return None
    if status >= 500 or status in _RETRIED_STATUSES:
        return ErrorClass.TRANSIENT
    return ErrorClass.PERMANENT
