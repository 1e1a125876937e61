"""Data without methods.

Where an object or a list lacks a name, the engine looks for a Python attribute of that name: `input.pop` would be a
method, and not a missing path. A `GuardedDict` and a `GuardedList` have no such attributes. They cost the engine
twice the time of plain data, so they are made only for templates that may ask for the name of a method (sources.py).
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

METHODS: Final = frozenset(name for kind in (dict, list) for name in dir(kind) if not name.startswith("_"))


def _no_attribute(_: Any) -> NoReturn:
    raise AttributeError


class _Items:
    """The engine takes for an object what has the attribute `items`. It asks for the key `items` first, if a template
    does: just then there is no such attribute."""

    def __get__(self, owner: GuardedDict, _: type) -> bool:
        if owner.was_asked:
            owner.was_asked = False
            raise AttributeError
        return True


class GuardedDict(dict[str, Any]):
    was_asked = False

    def __missing__(self, key: str) -> NoReturn:
        self.was_asked = key == "items"
        raise KeyError(key)


class GuardedList(list[Any]):
    __slots__ = ()


for _kind in (GuardedDict, GuardedList):
    for _name in METHODS & set(dir(_kind)):
        setattr(_kind, _name, property(_no_attribute))
GuardedDict.items = _Items()  # type: ignore[method-assign, assignment]


def guarded(value: Any) -> Any:
    """A copy of JSON data that has no methods."""
    if isinstance(value, dict):
        made = GuardedDict(value)
        for key, item in value.items():
            if isinstance(item, dict | list):
                made[key] = guarded(item)
        return made
    if isinstance(value, list):
        return GuardedList([guarded(item) if isinstance(item, dict | list) else item for item in value])
    return value


def unguarded(value: Any) -> Any:
    """The data of a guarded value as plain JSON."""
    if isinstance(value, dict):
        return {key: unguarded(value[key]) for key in value}
    return [unguarded(item) for item in value] if isinstance(value, list | tuple) else value
