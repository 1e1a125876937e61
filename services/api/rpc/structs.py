"""`google.protobuf.Struct` to Python values and back, at the only border where Struct exists.

Struct has no integers: a whole number becomes an int again while a double holds every whole number (up to 2^53). NaN
and infinities are passed on, so that they are refused by their paths; otherwise orjson would silently make them null.
"""

from __future__ import annotations

import math
from typing import Any, Final, TypeVar

import orjson
from google.protobuf import struct_pb2
from google.protobuf.message import Message

from services.api.app.refusals import invalid_field, invalid_fields
from services.chassis.grpc.beside import HERE_BYTES_MAX, beside
from windlass.definition.json_values import number, sift
from windlass.definition.limits import DEPTH_MAX

# The smallest value in JSON has two bytes, a digit and a comma. A member of an object has its key and three more.
_VALUE_BYTES_MIN: Final = 2
_MEMBER_BYTES_MIN: Final = 5
Made = TypeVar("Made", bound=Message)


def holding(kind: type[Made], **fields: Any) -> Made:
    """`kind(**fields)` for messages with free JSON. The constructor would serialise and parse each message again."""
    made = kind()
    for name, value in fields.items():
        if isinstance(value, Message):
            getattr(made, name).CopyFrom(value)
        elif isinstance(value, list):
            entries = getattr(made, name)
            for each in value:
                entries.add().CopyFrom(each)
        else:
            setattr(made, name, value)
    return made


def sorted_json(document: Any) -> bytes:
    """JSON in which a repeat of a command has the same bytes: a Struct has its members in no order."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


class StructTooLarge(Exception):
    """The Struct has more values than JSON of the allowed size can have."""


async def to_dict(struct: struct_pb2.Struct, field: str, bytes_max: int) -> dict[str, Any]:
    """The content of the Struct, or a refusal that names it `field`. The guard has refused NUL already.

    Only a Struct that is surely over `bytes_max` as JSON is refused here. The caller measures the others.
    """
    if not struct.fields:
        return {}
    try:
        return _sound(struct, field, min(bytes_max, HERE_BYTES_MAX))
    except StructTooLarge:
        # Its size is only known once it is read, so a large one is begun again.
        pass
    try:
        return await beside(bytes_max, lambda: _sound(struct, field, bytes_max))
    except StructTooLarge:
        raise invalid_field(field, "TOO_LARGE", f"has more than {bytes_max} bytes") from None


async def to_json(struct: struct_pb2.Struct, field: str, bytes_max: int) -> bytes:
    """The content of the Struct as sorted JSON of at most `bytes_max`, or a refusal that names it `field`."""
    content = sorted_json(await to_dict(struct, field, bytes_max))
    if len(content) > bytes_max:
        raise invalid_field(field, "TOO_LARGE", f"{len(content)} bytes; at most {bytes_max}")
    return content


def _sound(struct: struct_pb2.Struct, field: str, bytes_max: int) -> dict[str, Any]:
    reader = _StructReader(bytes_max)
    document = reader.members(struct, 0)
    if reader.has_odd:
        raise invalid_fields(sift(document, field).faults)
    return document


def document_of(struct: struct_pb2.Struct, bytes_max: int) -> dict[str, Any]:
    """The content of the Struct. A level that is too deep is empty. Raises StructTooLarge."""
    return _StructReader(bytes_max).members(struct, 0)


class _StructReader:
    """Converts one Struct, and stops when its JSON is surely too large, because conversion blocks all other work."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_left = bytes_max
        # A value was found that cannot be stored.
        self.has_odd = False

    def members(self, struct: struct_pb2.Struct, depth: int) -> dict[str, Any]:
        if not self._may_enter(len(struct.fields) * _MEMBER_BYTES_MIN, depth):
            return {}
        return {key: self._value(inner, depth + 1) for key, inner in struct.fields.items()}

    def _entries(self, values: struct_pb2.ListValue, depth: int) -> list[Any]:
        if not self._may_enter(len(values.values) * _VALUE_BYTES_MIN, depth):
            return []
        return [self._value(inner, depth + 1) for inner in values.values]

    def _may_enter(self, bytes_min: int, depth: int) -> bool:
        self._bytes_left -= bytes_min
        if self._bytes_left < 0:
            raise StructTooLarge
        if depth < DEPTH_MAX:
            return True
        self.has_odd = True
        return False

    def _value(self, value: struct_pb2.Value, depth: int) -> Any:
        match value.WhichOneof("kind"):
            case "string_value":
                return value.string_value
            case "number_value":
                if not math.isfinite(value.number_value):
                    self.has_odd = True
                return number(value.number_value)
            case "struct_value":
                return self.members(value.struct_value, depth)
            case "list_value":
                return self._entries(value.list_value, depth)
            case "bool_value":
                return value.bool_value
            case _:
                return None


def fill(struct: struct_pb2.Struct, content: bytes) -> None:
    """Parse a JSON object into `struct`; any other value becomes `{"value": …}`. Large content is filled `beside`."""
    if not content:
        return
    document = orjson.loads(content)
    struct.SetInParent()
    _fill(struct, document if isinstance(document, dict) else {"value": document})


def fill_documents(message: Any, documents: bytes) -> None:
    """Parse JSON with the members `inputs` and `config` into the fields of these names."""
    found = orjson.loads(documents)
    for name in ("inputs", "config"):
        fill(getattr(message, name), orjson.dumps(found[name]))


def _fill(struct: struct_pb2.Struct, document: dict[str, Any]) -> None:
    fields = struct.fields
    for key, inner in document.items():
        set_value(fields[key], inner)


def set_value(target: struct_pb2.Value, value: Any) -> None:
    match value:
        case str():
            target.string_value = value
        case bool():
            target.bool_value = value
        case int() | float():
            target.number_value = value
        case dict():
            target.struct_value.SetInParent()
            _fill(target.struct_value, value)
        case list():
            target.list_value.SetInParent()
            for inner in value:
                set_value(target.list_value.values.add(), inner)
        case _:
            target.null_value = struct_pb2.NULL_VALUE
