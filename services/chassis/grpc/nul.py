"""Finds the paths at which the text in a message holds a NUL.

A request may be nested deep, hold millions of values, and repeat one long key above all of them. So the search looks at
one value at a time with a stack of iterators, builds a path only for a NUL that it has found, clips the keys in it, and
ends after PATHS_MAX. It never looks into messages that can hold no text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from itertools import islice
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import ListValue, Struct, Value

from services.chassis.grpc.descriptors import reached

PATHS_MAX: Final = 100
KEY_CHARACTERS_MAX: Final = 100
PATH_CHARACTERS_MAX: Final = 1_000
_KINDS_WITH_TEXT: Final = frozenset({"string_value", "struct_value", "list_value"})

# The contents of a value, each with the step that leads to it: the name of a field, a number or a key.
_Inside = Iterator[tuple[Any, Any]]
_Form = Callable[[Any], str]


class _Kind(Enum):
    TEXT = auto()
    MESSAGE = auto()
    LIST = auto()
    MAP = auto()
    # A map in which only the keys are text.
    KEYS = auto()


class _Place(NamedTuple):
    """The position of the search inside one value, and the form in which a step into it is written."""

    inside: _Inside
    form: _Form


def nul_paths(message: Message) -> Iterator[str]:
    """The first PATHS_MAX paths. In free JSON they are paths of the JSON."""
    return islice(_all_paths(message), PATHS_MAX)


def _all_paths(message: Message) -> Iterator[str]:
    places = [_place(message)]
    # The steps that led from each place to the next.
    steps: list[Any] = []
    while places:
        for step, value in places[-1].inside:
            if isinstance(value, str):
                if "\x00" in value:
                    yield _path(places, [*steps, step])
                continue
            places.append(value if isinstance(value, _Place) else _place(value))
            steps.append(step)
            break
        else:
            places.pop()
            if steps:
                steps.pop()


def _path(places: list[_Place], steps: list[Any]) -> str:
    """A path like `nodes[2].labels['region']`. A long path has only its outermost steps."""
    path = ""
    for place, step in zip(places, steps, strict=True):
        path += place.form(step)
        if len(path) > PATH_CHARACTERS_MAX:
            break
    return path[:PATH_CHARACTERS_MAX].removeprefix(".")


def _place(message: Message) -> _Place:
    if (placed := _FREE_JSON.get(type(message))) is not None:
        return placed(message)
    return _Place(_fields(message), _member)


def _fields(message: Message) -> _Inside:
    for name, kind in text_fields(message.DESCRIPTOR):
        if kind is _Kind.MESSAGE:
            if message.HasField(name):
                yield name, getattr(message, name)
            continue
        value = getattr(message, name)
        if kind is _Kind.TEXT:
            yield name, value
        elif not value:
            continue
        elif kind is _Kind.LIST:
            yield name, _Place(enumerate(value), _index)
        else:
            yield name, _Place(_entries_of_map(value, kind), _subscript)


def _entries_of_map(values: Any, kind: _Kind) -> _Inside:
    for key in values:
        if isinstance(key, str):
            yield key, key
        if kind is _Kind.MAP:
            yield key, values[key]


def _entries_of_struct(struct: Any) -> _Inside:
    for key, value in struct.fields.items():
        yield key, key
        if (held := _held(value)) is not None:
            yield key, held


def _entries_of_list(values: Any) -> _Inside:
    for index, value in enumerate(values.values):
        if (held := _held(value)) is not None:
            yield index, held


def _placed_value(value: Any) -> _Place:
    held = _held(value)
    return _Place(iter(() if held is None else (("", held),)), str)


def _held(value: Any) -> Any:
    """The value that free JSON has here, or None when it can hold no text."""
    kind = value.WhichOneof("kind")
    return getattr(value, kind) if kind in _KINDS_WITH_TEXT else None


def _member(step: str) -> str:
    return f".{_shown(step)}"


def _index(step: int) -> str:
    return f"[{step}]"


def _subscript(step: Any) -> str:
    return f"[{_shown(step)!r}]" if isinstance(step, str) else f"[{step}]"


def _shown(key: str) -> str:
    return key[:KEY_CHARACTERS_MAX].replace("\x00", "?")


@functools.cache
def text_fields(descriptor: Descriptor) -> tuple[tuple[str, _Kind], ...]:
    """The fields that can hold text, themselves or anywhere below."""
    found = ((field.name, _kind(field)) for field in descriptor.fields)
    return tuple((name, kind) for name, kind in found if kind is not None)


def _kind(field: FieldDescriptor) -> _Kind | None:
    inner = field.message_type
    if inner is None:
        if field.type != FieldDescriptor.TYPE_STRING:
            return None
        return _Kind.LIST if field.is_repeated else _Kind.TEXT
    if not _reaches_text(inner):
        return None
    if inner.GetOptions().map_entry:
        value: Any = inner.fields_by_name["value"]
        return _Kind.MAP if _kind(value) is not None else _Kind.KEYS
    return _Kind.LIST if field.is_repeated else _Kind.MESSAGE


def _reaches_text(descriptor: Descriptor) -> bool:
    return any(
        field.type == FieldDescriptor.TYPE_STRING for each in reached(descriptor) for field in each.fields
    )


_FREE_JSON: Final[Mapping[type[Message], Callable[[Any], _Place]]] = {
    Struct: lambda struct: _Place(_entries_of_struct(struct), _member),
    ListValue: lambda values: _Place(_entries_of_list(values), _index),
    Value: _placed_value,
}
