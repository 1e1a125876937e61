"""Events made from the types of their fields, so that a new field is part of every sample at once."""

from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType
from typing import Any, cast, get_args, get_type_hints

from services.coordinator.core.events import Event
from services.coordinator.core.values import ExecutionState

T = 1_800_000_000_123_456
# An execution is told to end in one of these states. It is stored in no other state.
_FINAL = [ExecutionState.SUCCESS, ExecutionState.FAILED, ExecutionState.CANCELLED, ExecutionState.TIMEOUT]
_AT_REST: dict[Any, Any] = {int: 0, float: 0.0, str: "", bytes: b"", bool: False}
# In this number of samples, every member of every enum occurs, and every form of a value.
VARIANTS = range(1, 6)


def sample(kind: type[Event], variant: int) -> Any:
    """Variant 0 has every field empty. Every other variant has all of them set."""
    return _of(kind, variant, kind.__name__)


def _of(kind: Any, variant: int, name: str) -> Any:
    if name == "time":
        return T
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        hints, make = get_type_hints(kind), cast(Any, kind)
        return make(**{field: _of(hints[field], variant, field) for field in _names(kind)})
    if isinstance(kind, type) and issubclass(kind, Enum):
        members = _FINAL if kind is ExecutionState else list(kind)
        return members[(variant - 1) % len(members)]
    if kind in _AT_REST:
        return _scalar(kind, variant, name) if variant else _AT_REST[kind]
    return _composed(kind, variant, name)


def _names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)] if is_dataclass(kind) else list(kind._fields)


def _scalar(kind: type, variant: int, name: str) -> Any:
    """Another value for each field, so that an exchange of two is noticed."""
    number = len(name) * 100 + ord(name[0]) + variant
    return {int: number, float: number / 1024, str: name, bytes: name.encode(), bool: True}[kind]


def _composed(kind: Any, variant: int, name: str) -> Any:
    args = get_args(kind)
    if Ellipsis in args:
        return (_of(args[0], variant, name),) if variant else ()
    if NoneType in args and not variant:
        return None
    choices = [arg for arg in args if arg is not NoneType]
    if isinstance(kind, type(tuple[str, str])):
        return tuple(f"{name}{place}" for place, _ in enumerate(args))
    return _of(choices[variant % len(choices)], variant, name)
