"""Finds the paths at which the text in a message holds a NUL.

A request may be nested deep, hold millions of values, and repeat one long key above all of them. So a path is written
only for a NUL that was found, long keys are clipped in it, and the search ends after PATHS_MAX. It never looks into
messages that can hold no text. The parser limits the depth of messages, and so of the recursion.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
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


class _Kind(Enum):
    TEXT = auto()
    MESSAGE = auto()
    LIST = auto()
    MAP = auto()
    # A map in which only the keys are text.
    KEYS = auto()


class _Step(NamedTuple):
    """One step of a path, and the step before it. `form` writes `at`, which holds names, numbers or keys."""

    before: _Step | None
    form: Callable[[Any], str]
    at: Any


def nul_paths(message: Message) -> Iterator[str]:
    """The first PATHS_MAX paths. In free JSON they are paths of the JSON."""
    return islice(_search(message, None), PATHS_MAX)


def _search(message: Message, before: _Step | None) -> Iterator[str]:
    for form, at, inner in _contents(message):
        if not isinstance(inner, str):
            yield from _search(inner, _Step(before, form, at))
        elif "\x00" in inner:
            yield _path(_Step(before, form, at))


def _path(last: _Step) -> str:
    """A path like `nodes[2].labels['region']`. A long path has only its outermost steps."""
    steps: list[_Step] = []
    step: _Step | None = last
    while step is not None:
        steps.append(step)
        step = step.before
    path = ""
    for step in reversed(steps):
        path += step.form(step.at)
        if len(path) > PATH_CHARACTERS_MAX:
            break
    return path[:PATH_CHARACTERS_MAX].removeprefix(".")


def _contents(message: Message) -> Iterator[tuple[Callable[[Any], str], Any, Any]]:
    """The texts and messages directly in this message, each with the form and the place of its step."""
    if isinstance(message, Struct):
        for key, value in message.fields.items():
            yield _member, key, key
            if (held := _held(value)) is not None:
                yield _member, key, held
    elif isinstance(message, ListValue):
        for index, value in enumerate(message.values):
            if (held := _held(value)) is not None:
                yield _index, index, held
    elif isinstance(message, Value):
        if (held := _held(message)) is not None:
            yield str, "", held
    else:
        yield from _contents_of_fields(message)


def _contents_of_fields(message: Message) -> Iterator[tuple[Callable[[Any], str], Any, Any]]:
    for name, kind in text_fields(message.DESCRIPTOR):
        value = getattr(message, name)
        if kind is _Kind.TEXT or (kind is _Kind.MESSAGE and message.HasField(name)):
            yield _member, name, value
        elif kind is _Kind.LIST:
            for index, each in enumerate(value):
                yield _item, (name, index), each
        elif kind is _Kind.MAP or kind is _Kind.KEYS:
            for key in value:
                if isinstance(key, str):
                    yield _item, (name, key), key
                if kind is _Kind.MAP:
                    yield _item, (name, key), value[key]


def _held(value: Value) -> Any:
    """The value that free JSON has here, or None when it can hold no text."""
    kind = value.WhichOneof("kind")
    return getattr(value, kind) if kind in _KINDS_WITH_TEXT else None


def _member(name: str) -> str:
    return f".{_shown(name)}"


def _index(index: int) -> str:
    return f"[{index}]"


def _item(place: tuple[str, Any]) -> str:
    name, key = place
    return f".{name}[{_shown(key)!r}]" if isinstance(key, str) else f".{name}[{key}]"


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
    return any(field.type == FieldDescriptor.TYPE_STRING for each in reached(descriptor) for field in each.fields)
