"""Compares two states of the same execution, field by field.

Nothing here knows how a snapshot is stored, so that a field which the snapshot forgets is found. The fields are those
that the objects have. Where an object refers to another one that is listed elsewhere, its key is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

from services.coordinator.core.definition import Node
from services.coordinator.core.state import Execution, Run, Timer, Work, WorkLoop, is_stale

# A cache that follows from the rest of the state, what both have in common, and the list of a loop, which is read when
# it is needed.
_NOT_COMPARED: Final = {Execution: ("state_views", "definition"), WorkLoop: ("items",)}
_ONE_BY_ONE: Final = ("work", "runs")
_TIMERS: Final = ("timers", "held_timers")


def differences(left: Execution, right: Execution) -> list[str]:
    """The fields that differ, with what they are in."""
    apart = _of_each("work", left.work, right.work)
    apart += _of_each("loop", _loops(left), _loops(right))
    runs, others = ({run.number: run for run in each.runs} for each in (left, right))
    apart += _of_each("run", runs, others)
    for name in _names(left):
        one, other = getattr(left, name), getattr(right, name)
        if name in _TIMERS:
            one, other = _in_force(left, one), _in_force(right, other)
        if name not in _ONE_BY_ONE and _plain(one) != _plain(other):
            apart.append(name)
    return apart


def _loops(execution: Execution) -> Mapping[Any, WorkLoop]:
    """Also those that have ended."""
    return {work.loop.work.key: work.loop for work in execution.work.values() if work.loop is not None}


def _of_each(name: str, ones: Mapping[Any, Any], others: Mapping[Any, Any]) -> list[str]:
    if list(ones) != list(others):
        return [f"{name}: not the same ones"]
    return [
        f"{name} {key}: {field}"
        for key, one in ones.items()
        for field in _names(one)
        if _plain(getattr(one, field)) != _plain(getattr(others[key], field))
    ]


def _names(item: Any) -> list[str]:
    return [each.name for each in fields(item) if each.name not in _NOT_COMPARED.get(type(item), ())]


def _in_force(execution: Execution, timers: Iterable[Timer]) -> list[Timer]:
    return sorted(timer for timer in timers if not is_stale(execution, timer))


def _plain(value: Any) -> Any:
    """The value without the identity of objects, and with the order of mappings."""
    if isinstance(value, Work | WorkLoop):
        return type(value).__name__, value.key if isinstance(value, Work) else value.work.key
    if isinstance(value, Run):
        return "Run", value.number
    if isinstance(value, Node):
        return id(value)
    if isinstance(value, Mapping):
        return [(_plain(key), _plain(item)) for key, item in value.items()]
    if isinstance(value, Enum | str | bytes | int | float) or value is None:
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, [_plain(getattr(value, each.name)) for each in fields(value)]
    return type(value).__name__, [_plain(item) for item in value]
