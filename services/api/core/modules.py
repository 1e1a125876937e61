"""Which modules a node may name, and what those demand of their config whose config is known here.

A bare name (`noop@1`) is one of ours; a dotted one (`billing.charge@2`) is somebody's own, known once a runner has
announced it. Control modules are done by the engine itself, so their config is checked here, all of it. Of the modules
that evaluate expressions, only those are: YAML makes of `when: true` what is no text.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from services.api.core.durations import microseconds
from services.api.core.faults import Fault, child
from services.api.core.templates import is_template

RUNNER_MODULES: Final = frozenset(
    {"noop@1", "transform@1", "condition@1", "switch@1", "delay@1", "fail@1", "http.request@1"}
)
# In the format, but not carried out by this version of the engine: refused rather than accepted and never done.
UNSUPPORTED_MODULES: Final = frozenset({"wait_signal@1", "approval@1", "sub_workflow@1", "for_each@1"})

_NAME: Final = re.compile(r"([a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*)(?:@([1-9][0-9]{0,5}))?")
_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)
# No timestamp on the wire holds the year 10000; the second below it is room to round in.
_TIME_MAX: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
NAME_CHARACTERS_MAX: Final = 128

Checks = Callable[[Mapping[str, Any], str], Iterator[Fault]]


def module_faults(module: Any, path: str) -> Iterator[Fault]:
    """What is wrong with the name of a module."""
    if not isinstance(module, str):
        yield Fault(path, "REQUIRED" if module is None else "WRONG_TYPE", "must name a module, like noop@1")
        return
    parts = _NAME.fullmatch(module) if len(module) <= NAME_CHARACTERS_MAX else None
    if parts is None:
        yield Fault(path, "MALFORMED_MODULE", "a module is named like noop@1 or billing.charge@2")
    elif parts[2] is None:
        yield Fault(path, "MODULE_VERSION_REQUIRED", f"say which version: {module}@1")
    elif module in UNSUPPORTED_MODULES:
        yield Fault(path, "UNSUPPORTED_MODULE", f"{module} is not carried out by this version of Windlass")
    elif module not in RUNNER_MODULES and module not in CONTROL_MODULES and not is_own(module):
        known = ", ".join(sorted(RUNNER_MODULES | CONTROL_MODULES.keys()))
        yield Fault(
            path, "UNKNOWN_MODULE", f"there is no {module}; built in are {known}; your own have a dot"
        )


def is_own(module: str) -> bool:
    """Whether it is somebody's own, which only a runner can announce."""
    return "." in module and module not in RUNNER_MODULES and module.partition("@")[0] not in _OWN_FORBIDDEN


def _join_faults(config: Mapping[str, Any], path: str) -> Iterator[Fault]:
    yield from _unknown_keys(config, path, frozenset())


def _sleep_faults(config: Mapping[str, Any], path: str) -> Iterator[Fault]:
    yield from _unknown_keys(config, path, frozenset({"duration", "until"}))
    if ("duration" in config) == ("until" in config):
        yield Fault(path, "REQUIRED", "sleep@1 needs either a duration or the time until when")
    if "duration" in config and not _is_rendered_later(config["duration"]):
        if microseconds(config["duration"]) is None:
            yield Fault(
                f"{path}.duration", "BAD_DURATION", 'a duration is written like "30s", at most a year'
            )
    if "until" in config and not _is_rendered_later(config["until"]) and not _is_time(config["until"]):
        message = 'a time is written like "2026-11-01T00:00:00Z", at most "9999-12-31T23:59:59Z"'
        yield Fault(f"{path}.until", "BAD_TIME", message)


def _condition_faults(config: Mapping[str, Any], path: str) -> Iterator[Fault]:
    yield from _expression_faults(config, "expression", path)


def _switch_faults(config: Mapping[str, Any], path: str) -> Iterator[Fault]:
    cases = config.get("cases")
    for place, case in enumerate(cases if isinstance(cases, list) else ()):
        if isinstance(case, dict):
            yield from _expression_faults(case, "when", f"{path}.cases[{place}]")


def _expression_faults(where: Mapping[str, Any], key: str, path: str) -> Iterator[Fault]:
    if key in where and not isinstance(where[key], str):
        yield Fault(f"{path}.{key}", "WRONG_TYPE", 'an expression is text: write "input.n > 5" in quotes')


def _unknown_keys(config: Mapping[str, Any], path: str, known: frozenset[str]) -> Iterator[Fault]:
    for key in config:
        if key not in known:
            yield Fault(child(path, key), "UNKNOWN_FIELD", "this module has no such setting")


def _is_rendered_later(value: Any) -> bool:
    return isinstance(value, str) and is_template(value)


def _is_time(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return False
    # Of the many forms of ISO 8601 the engine reads that of RFC 3339, which has an offset.
    return _TIME.fullmatch(value) is not None and time <= _TIME_MAX


CONTROL_MODULES: Final[Mapping[str, Checks]] = {"join@1": _join_faults, "sleep@1": _sleep_faults}
CONFIG_CHECKS: Final[Mapping[str, Checks]] = {
    **CONTROL_MODULES,
    "condition@1": _condition_faults,
    "switch@1": _switch_faults,
}
# http.request@2 is no module of a user's: the name is ours.
_OWN_FORBIDDEN: Final = frozenset(module.partition("@")[0] for module in RUNNER_MODULES)
