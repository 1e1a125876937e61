"""Finds the paths at which the text in a message holds a NUL.

A request may be nested deep, hold millions of values, and repeat one long key above all of them. So a path is written
only for a NUL that was found, long keys are clipped in it, and the search ends after PATHS_MAX. It never looks into
messages that can hold no text. The parser limits the depth of messages, and so of the recursion.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import ListValue, Struct, Value

from services.chassis.grpc.descriptors import is_map, reached

PATHS_MAX: Final = 100
KEY_CHARACTERS_MAX: Final = 100
PATH_CHARACTERS_MAX: Final = 1_000
_KINDS_WITH_TEXT: Final = frozenset({"string_value", "struct_value", "list_value"})


def nul_paths(message: Message) -> Iterator[str]:
    """The first PATHS_MAX paths, like `nodes[2].labels['region']`. In free JSON they are paths of the JSON."""
    return (path.removeprefix(".") for path in islice(_search(message), PATHS_MAX))


def _search(message: Message) -> Iterator[str]:
    """The paths in this message. A long path has only its outermost steps."""
    for form, place, inner in _contents(message):
        if not isinstance(inner, str):
            for rest in _search(inner):
                yield (form(place) + rest)[:PATH_CHARACTERS_MAX]
        elif "\x00" in inner:
            yield form(place)


def _contents(message: Message) -> Iterator[tuple[Callable[[Any], str], Any, Any]]:
    """The texts and messages directly in this message. Before each come its place, which is a name, a number or a
    key, and the function that writes the place as a step of the path.
    """
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
    for field in text_fields(message.DESCRIPTOR):
        name, value = field.name, getattr(message, field.name)
        if not field.is_repeated:
            if field.message_type is None or message.HasField(name):
                yield _member, name, value
        elif not is_map(field):
            for index, each in enumerate(value):
                yield _item, (name, index), each
        else:
            parts = [part.name for part in text_fields(field.message_type)]
            for key in value:
                if "key" in parts:
                    yield _item, (name, key), key
                if "value" in parts:
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
def text_fields(descriptor: Descriptor) -> tuple[FieldDescriptor, ...]:
    """The fields that can hold text, themselves or anywhere below."""
    return tuple(
        field
        for field in descriptor.fields
        if _is_text(field) or any(_is_text(inner) for each in _below(field) for inner in each.fields)
    )


def _is_text(field: FieldDescriptor) -> bool:
    return field.type == FieldDescriptor.TYPE_STRING


def _below(field: FieldDescriptor) -> tuple[Descriptor, ...]:
    return () if field.message_type is None else reached(field.message_type)
