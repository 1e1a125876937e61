"""Checks of single fields of a definition: type, form, range, and unknown fields."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
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


def _typed(kind: type, message: str, value: Any, path: str) -> Iterator[Fault]:
    if not isinstance(value, kind):
        yield Fault(path, "WRONG_TYPE", message)


flag: Final = partial(_typed, bool, "must be true or false")
mapping: Final = partial(_typed, dict, "must be an object")


def labels(value: Any, path: str) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield Fault(path, "WRONG_TYPE", "must be an object of texts")
        return
    for key, entry in value.items():
        if not isinstance(entry, str) or not key or len(key) > 63 or len(entry) > 255:
            yield Fault(
                child(path, key), "WRONG_TYPE", "a label is a name of at most 63 characters with a text of at most 255"
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


def _from_one(most: int, kinds: tuple[type, ...], name: str, value: Any, path: str) -> Iterator[Fault]:
    if type(value) not in kinds:
        yield Fault(path, "WRONG_TYPE", f"must be a {name}")
    elif not 1 <= value <= most:
        yield Fault(path, "OUT_OF_RANGE", f"must be from 1 to {most}")


def members(value: Mapping[str, Any], path: str, known: Mapping[str, Check | None]) -> Iterator[Fault]:
    """Check each member; a member that is not in `known` is a fault. None stands for a check elsewhere."""
    for key, inner in value.items():
        if key not in known:
            yield Fault(
                child(path, key), "UNKNOWN_FIELD", f"there is no such field; there are {', '.join(sorted(known))}"
            )
        elif (check := known[key]) is not None:
            yield from check(inner, child(path, key))


_RETRY: Final[Mapping[str, Check]] = {
    "attempts": partial(_from_one, ATTEMPTS_MAX, (int,), "whole number"),
    "initialDelay": duration,
    "factor": partial(_from_one, FACTOR_MAX, (int, float), "number"),
    "maxDelay": duration,
    "budget": duration,
}


def retry(value: Any, path: str, inherited: Mapping[str, Any] | None = None) -> Iterator[Fault]:
    """A retry policy. Absent members are inherited from the workflow's policy, then from the defaults."""
    if not isinstance(value, dict):
        yield Fault(path, "WRONG_TYPE", "must be an object")
        return
    yield from members(value, path, _RETRY)
    # docs/definitions.md lists the defaults.
    whole = {**(inherited or {}), **value}
    first = _length(whole.get("initialDelay", "1s"), 0)
    if _length(whole.get("maxDelay", "300s"), first) < first:
        yield Fault(child(path, "maxDelay"), "OUT_OF_RANGE", "must not be shorter than initialDelay")


def _length(value: Any, otherwise: int) -> int:
    """Microseconds; `otherwise` for what is no duration, which is a fault already."""
    try:
        return parse_duration(value)
    except ValueError:
        return otherwise
