"""Settings as a class of annotated fields, which are read from the environment. All faults are reported at once.

    class Settings(EnvironmentSettings): port: int = Field(default=80, ge=1, le=65_535)      # WINDLASS_PORT

`Settings()` reads the environment, keywords override it, and the object is frozen. It is written by hand, because
pydantic-settings costs every process 8 MB and a tenth of a second.
Hazard: an empty variable counts as unset, so that a template may leave it blank. A fault never shows a value, because
the value may be a secret.
"""

from __future__ import annotations

import os
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, dataclass_transform

from services.chassis.process.naming import ENVIRONMENT_PREFIX


class InvalidSettings(ValueError):
    """The faults of the settings, separated by "; "."""


class _Field(typing.NamedTuple):
    default: Any
    gt: float | None
    ge: float | None
    le: float | None
    repr: bool

    def fault(self, value: Any) -> str | None:
        if self.gt is not None and not value > self.gt:
            return f"must be more than {self.gt}"
        if self.ge is not None and not value >= self.ge:
            return f"must be at least {self.ge}"
        if self.le is not None and not value <= self.le:
            return f"must be at most {self.le}"
        return None


def Field(
    *,
    default: Any,
    gt: float | None = None,
    ge: float | None = None,
    le: float | None = None,
    repr: bool = True,  # noqa: A002 - the word that dataclasses use
) -> Any:
    """A field with bounds, or one that must not be printed."""
    return _Field(default, gt, ge, le, repr)


def _truth(text: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    return known[text.lower()]


# The reader of a value, and the name of its type in a fault.
_READERS: Final[Mapping[type, tuple[Callable[[str], Any], str]]] = {
    str: (str, "text"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: (_truth, "true or false"),
    Path: (Path, "a path"),
}


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class EnvironmentSettings:
    _fields: typing.ClassVar[Mapping[str, tuple[type, _Field]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._fields = {**cls._fields, **_declared(cls)}

    def __init__(self, **given: Any) -> None:
        faults = [f"{name}: no such setting" for name in given.keys() - self._fields.keys()]
        for name, (kind, field) in self._fields.items():
            try:
                value = given[name] if name in given else _from_environment(name, kind, field)
            except ValueError as failure:
                faults.append(str(failure))
                continue
            fault = field.fault(value) if value is not None else None
            if fault is not None:
                faults.append(f"{variable(name)} {fault}")
            object.__setattr__(self, name, value)
        if not faults:
            faults += self.faults()
        if faults:
            raise InvalidSettings("; ".join(sorted(faults)))

    def faults(self) -> list[str]:
        """The faults of the settings taken together. Subclasses extend this."""
        return []

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"settings do not change: {name}")

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name, (_, field) in self._fields.items() if field.repr)
        return f"{type(self).__name__}({', '.join(shown)})"


def variable(name: str) -> str:
    """The name of a setting in the environment."""
    return ENVIRONMENT_PREFIX + name.upper()


def _declared(cls: type) -> dict[str, tuple[type, _Field]]:
    hints = typing.get_type_hints(cls)
    fields: dict[str, tuple[type, _Field]] = {}
    for name in cls.__annotations__:
        if name.startswith("_"):
            continue
        declared = cls.__dict__[name]
        field = declared if isinstance(declared, _Field) else _Field(declared, None, None, None, True)
        fields[name] = (_plain(hints[name]), field)
    return fields


def _plain(hint: Any) -> type:
    """The type that the text is read as. For `X | None` it is X."""
    if isinstance(hint, types.UnionType):
        (hint,) = (each for each in typing.get_args(hint) if each is not types.NoneType)
    if hint not in _READERS:
        raise TypeError(f"a setting cannot be {hint!r}")
    plain: type = hint
    return plain


def _from_environment(name: str, kind: type, field: _Field) -> Any:
    text = os.environ.get(variable(name), "")
    if not text:
        return field.default
    reader, type_name = _READERS[kind]
    try:
        return reader(text)
    except (ValueError, KeyError):
        raise ValueError(f"{variable(name)} must be {type_name}") from None
