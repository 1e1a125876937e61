"""Messages that are nested deeper than protobuf's parser goes by itself.

It stops at 100 levels of messages, and an object in free JSON is three of them (Struct, map entry, Value): JSON of 34
levels is refused though nothing is wrong with it. The only other limit that the parser can be given, 65,535, is more
than the stack of a thread holds. So what is nested too deep for the first is measured here, without recursion, and
parsed with the second only when it is within LEVELS_MAX: several times less than the stack has room for, also in what
goes through the message later (validation, copies). Only for types that can hold free JSON: any other that the parser
refuses is refused. And only up to FIELDS_MAX fields: the measuring is Python, on the loop, and whoever sends what does
not parse need not have shown a key.

Hazard: the parser's switch is the whole process's. It is thrown and taken back around one call that awaits nothing; no
other thread of ours may parse what comes from outside.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from services.chassis.grpc.descriptors import reached

Parsed = TypeVar("Parsed", bound=Message)
LEVELS_MAX: Final = 1_000
# A request of the largest size has millions; one that a person has written, far fewer than this.
FIELDS_MAX: Final = 200_000
_STRUCT: Final = "google.protobuf.Struct"
FREE_JSON: Final = frozenset({_STRUCT, "google.protobuf.ListValue", "google.protobuf.Value"})
# Of the wire types, the lowest three bits of a tag: bytes after their length, as messages are.
_LENGTH: Final = 2


class TooDeep(Exception):
    """Nested beyond LEVELS_MAX; `path` is that of the field, inside free JSON that of the whole of it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def parse(from_bytes: Callable[[bytes], Parsed], raw: bytes) -> Parsed:
    """The message; DecodeError when the bytes are none, TooDeep when nobody should look at it."""
    try:
        return from_bytes(raw)
    except DecodeError:
        owner: Any = getattr(from_bytes, "__self__", None)
        if owner is None or _allow_deep is None or not may_be_deep(owner.DESCRIPTOR):
            raise
        measure(raw, owner.DESCRIPTOR)
    # What was wrong may have been something else than depth: then this says so again.
    _allow_deep(True)
    try:
        return from_bytes(raw)
    finally:
        _allow_deep(False)


def _switch() -> Callable[[bool], object] | None:
    """The parser's, as far as it has one: without it its own limit stands."""
    try:
        from google._upb import _message
    except ImportError:
        return None
    return getattr(_message, "SetAllowOversizeProtos", None)


_allow_deep: Final = _switch()


@functools.cache
def may_be_deep(descriptor: Descriptor) -> bool:
    """Whether it is, or can hold, free JSON."""
    return any(each.full_name in FREE_JSON for each in reached(descriptor))


def measure(raw: bytes, descriptor: Descriptor) -> int:
    """How many levels of messages there are in `raw`, the outermost included; DecodeError when it has too many fields
    for that.
    """
    deepest = 1
    left = iter(range(FIELDS_MAX))
    stack = [(_fields(raw, 0, len(raw), left), _messages_in(descriptor))]
    while stack:
        fields, messages = stack[-1]
        for tag, start, end in fields:
            field = messages.get(tag)
            if field is None:
                continue
            if len(stack) == LEVELS_MAX:
                raise TooDeep(_path_to(start, raw, descriptor))
            stack.append((_fields(raw, start, end, left), _messages_in(field.message_type)))
            deepest = max(deepest, len(stack))
            break
        else:
            stack.pop()
    return deepest


@functools.cache
def _messages_in(descriptor: Descriptor) -> Mapping[int, FieldDescriptor]:
    """The fields that hold messages, by the tag that they have in bytes."""
    return {
        field.number << 3 | _LENGTH: field for field in descriptor.fields if field.message_type is not None
    }


def _fields(raw: bytes, at: int, end: int, left: Iterator[int]) -> Iterator[tuple[int, int, int]]:
    """Tag, beginning and end of each field with a length between two places; each field takes one of `left`."""
    while at < end:
        if next(left, None) is None:
            raise DecodeError("too many fields to be measured")
        tag, at = _varint(raw, at)
        match tag & 7:
            case 2:  # a length and as many bytes
                length, at = _varint(raw, at)
                yield tag, at, at + length
                at += length
            case 0:  # a number of any length
                _, at = _varint(raw, at)
            case 1:
                at += 8
            case 5:
                at += 4
            case _:
                raise DecodeError("a field of a kind that we have none of")
    if at != end:
        raise DecodeError("a field is longer than its message")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it."""
    number = shift = 0
    while shift < 70:
        if at >= len(raw):
            break
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise DecodeError("a number has no end")


def _path_to(place: int, raw: bytes, descriptor: Descriptor) -> str:
    """`requests[3].input`: the fields around a place, down to free JSON."""
    parts: list[str] = []
    around = (0, len(raw))
    while descriptor.full_name != _STRUCT:
        messages = _messages_in(descriptor)
        before: dict[int, int] = {}
        for tag, start, end in _fields(raw, *around, itertools.count()):
            if tag in messages and start <= place <= end:
                break
            before[tag] = before.get(tag, 0) + 1
        else:
            break
        field = messages[tag]
        assert field.message_type is not None
        parts.append(f"{field.name}[{before.get(tag, 0)}]" if field.is_repeated else field.name)
        descriptor, around = field.message_type, (start, end)
    return ".".join(parts)
