"""Settings as dataclasses that are read from the environment. All faults are reported at once.

    class Settings(EnvironmentSettings): port: int = Field(default=80, ge=1, le=65_535)      # WINDLASS_PORT

`Settings.from_environment()` reads them, and `Settings(port=81)` takes them from its caller. It is written by hand,
because pydantic-settings costs every process 8 MB and a tenth of a second.
Hazard: an empty variable counts as unset, so that a template may leave it blank. A fault never shows a value, because
the value may be a secret.
"""

from __future__ import annotations

import dataclasses
import operator
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, dataclass_transform

from services.chassis.process.naming import ENVIRONMENT_PREFIX


class InvalidSettings(ValueError):
    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = sorted(faults)
        super().__init__("; ".join(self.faults))


# How each bound is compared, and its words in a fault.
_BOUNDS: Final[Mapping[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "gt": (operator.gt, "more than"),
    "ge": (operator.ge, "at least"),
    "le": (operator.le, "at most"),
}


def Field(*, default: Any, repr: bool = True, **bounds: float) -> Any:  # noqa: A002 - the word that dataclasses use
    """A field with bounds (gt, ge, le), or one that must not be printed."""
    return dataclasses.field(default=default, repr=repr, metadata=bounds)


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
    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        if faults := self._faults_of_bounds() or self.faults():
            raise InvalidSettings(faults)

    def _faults_of_bounds(self) -> list[str]:
        return [
            f"{variable(field.name)} must be {_BOUNDS[name][1]} {bound}"
            for field in dataclasses.fields(self)  # type: ignore[arg-type] # each subclass is a dataclass
            for name, bound in field.metadata.items()
            if not _BOUNDS[name][0](getattr(self, field.name), bound)
        ]

    def faults(self) -> list[str]:
        """The faults of the settings taken together. Subclasses extend this."""
        return []

    @classmethod
    def from_environment(cls) -> typing.Self:
        values: dict[str, Any] = {}
        faults: list[str] = []
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):  # type: ignore[arg-type] # as above
            reader, type_name = _READERS[_plain(hints[field.name])]
            try:
                if text := os.environ.get(variable(field.name), ""):
                    values[field.name] = reader(text)
            except (ValueError, KeyError):
                faults.append(f"{variable(field.name)} must be {type_name}")
        try:
            settings = cls(**values)
        except InvalidSettings as failure:
            raise InvalidSettings([*faults, *failure.faults]) from None
        if faults:
            raise InvalidSettings(faults)
        return settings


def variable(name: str) -> str:
    """The name of a setting in the environment."""
    return ENVIRONMENT_PREFIX + name.upper()


def _plain(hint: Any) -> type:
    """The type that the text is read as. For `X | None` it is X."""
    if isinstance(hint, types.UnionType):
        (hint,) = (each for each in typing.get_args(hint) if each is not types.NoneType)
    if hint not in _READERS:
        raise TypeError(f"a setting cannot be {hint!r}")
    plain: type = hint
    return plain
