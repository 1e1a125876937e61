"""Small checks of one field each, by which the definition is read: type, form, range, and nothing unknown beside it."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from windlass.definition.durations import parse_duration
from windlass.definition.faults import Fault, child
from windlass.definition.limits import ATTEMPTS_MAX, FACTOR_MAX

Check = Callable[[Any, str], Iterator[Fault]]


def text(max_characters: int) -> Check:
    def check(value: Any, path: str) -> Iterator[Fault]:
        if not isinstance(value, str):
            yield Fault(path, "WRONG_TYPE", "must be text")
        elif len(value) > max_characters:
            yield Fault(path, "TOO_LONG", f"at most {max_characters} characters")

    return check


def form(pattern: str, reason: str) -> Check:
    compiled = re.compile(pattern)

    def check(value: Any, path: str) -> Iterator[Fault]:
        if value is None:
            yield Fault(path, "REQUIRED", f"must be set, in the form {pattern}")
        elif not isinstance(value, str) or compiled.fullmatch(value) is None:
            yield Fault(path, reason, f"must have the form {pattern}")

    return check


def one_of(*choices: str) -> Check:
    def check(value: Any, path: str) -> Iterator[Fault]:
        if value not in choices or not isinstance(value, str):
            yield Fault(path, "UNKNOWN_VALUE", f"must be one of {', '.join(choices)}")

    return check


def flag(value: Any, path: str) -> Iterator[Fault]:
    if not isinstance(value, bool):
        yield Fault(path, "WRONG_TYPE", "must be true or false")


def mapping(value: Any, path: str) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield Fault(path, "WRONG_TYPE", "must be an object")


def labels(value: Any, path: str) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield Fault(path, "WRONG_TYPE", "must be an object of texts")
        return
    for key, entry in value.items():
        if not isinstance(entry, str) or not key or len(key) > 63 or len(entry) > 255:
            yield Fault(
                child(path, key),
                "WRONG_TYPE",
                "a label is a name of at most 63 characters with a text of at most 255",
            )


def duration(value: Any, path: str) -> Iterator[Fault]:
    try:
        parse_duration(value)
    except ValueError as fault:
        yield Fault(path, "BAD_DURATION", str(fault))


def timeout(value: Any, path: str) -> Iterator[Fault]:
    yield from duration(value, path)
    if _length(value, 1) == 0:
        yield Fault(path, "OUT_OF_RANGE", "a timeout is longer than nothing")


def attempts(value: Any, path: str) -> Iterator[Fault]:
    if isinstance(value, bool) or not isinstance(value, int):
        yield Fault(path, "WRONG_TYPE", "must be a whole number")
    elif not 1 <= value <= ATTEMPTS_MAX:
        yield Fault(path, "OUT_OF_RANGE", f"must be from 1 to {ATTEMPTS_MAX}")


def factor(value: Any, path: str) -> Iterator[Fault]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        yield Fault(path, "WRONG_TYPE", "must be a number")
    elif not 1 <= value <= FACTOR_MAX:
        yield Fault(path, "OUT_OF_RANGE", f"must be from 1 to {FACTOR_MAX}")


def members(value: Mapping[str, Any], path: str, known: Mapping[str, Check | None]) -> Iterator[Fault]:
    """Each member by its check; those without a name here are faults. None: looked at elsewhere."""
    for key, inner in value.items():
        if key not in known:
            yield Fault(
                child(path, key),
                "UNKNOWN_FIELD",
                f"there is no such field; there are {', '.join(sorted(known))}",
            )
        elif (check := known[key]) is not None:
            yield from check(inner, child(path, key))


_RETRY: Final[Mapping[str, Check]] = {
    "attempts": attempts,
    "initialDelay": duration,
    "factor": factor,
    "maxDelay": duration,
    "budget": duration,
}


def retry(value: Any, path: str, inherited: Mapping[str, Any] | None = None) -> Iterator[Fault]:
    """A retry policy, whose absent members are those of the workflow's policy, then the defaults."""
    if not isinstance(value, dict):
        yield Fault(path, "WRONG_TYPE", "must be an object")
        return
    yield from members(value, path, _RETRY)
    # What a policy is where it says nothing is in docs/definitions.md.
    whole = {**(inherited or {}), **value}
    first = _length(whole.get("initialDelay", "1s"), 0)
    if _length(whole.get("maxDelay", "300s"), first) < first:
        yield Fault(child(path, "maxDelay"), "OUT_OF_RANGE", "must not be shorter than initialDelay")


def _length(value: Any, otherwise: int) -> int:
    """`otherwise`: of what is no duration, which is a fault already."""
    try:
        return parse_duration(value)
    except ValueError:
        return otherwise
