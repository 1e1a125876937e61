"""`google.protobuf.Struct` to Python values and back, at the only edge where Struct exists.

Struct knows no integers: a number that is whole becomes an int again, as its author wrote it, while it is small
enough for a double to hold every whole number (2^53). NaN and infinities come through as they are, for whoever names
them by their paths; unnamed they would be lost, because JSON has none and orjson turns them into null in silence.
"""

from __future__ import annotations

import math
from typing import Any, Final, TypeVar

import orjson
from google.protobuf import struct_pb2
from google.protobuf.message import Message

from services.api.app.refusals import invalid_field, invalid_fields
from windlass.definition.json_values import number, sift
from windlass.definition.limits import DEPTH_MAX

# As JSON the least value has two bytes, a digit and a comma; a member of an object its key too, and three around that.
_VALUE_BYTES_MIN: Final = 2
_MEMBER_BYTES_MIN: Final = 5
# What null, a truth or a text has more than a digit has, at the least.
_WORD_BYTES_MORE: Final = {None: 3, "null_value": 3, "bool_value": 3, "string_value": 1}
Made = TypeVar("Made", bound=Message)


def holding(kind: type[Made], **fields: Any) -> Made:
    """`kind(**fields)` for what may hold free JSON. The constructor itself would write and parse each message anew."""
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


def to_dict(struct: struct_pb2.Struct, field: str, bytes_max: int) -> dict[str, Any]:
    """What can be kept; `field` names the Struct in a refusal. NUL is the guard's to refuse.

    What is surely over `bytes_max` as JSON is refused before it is converted; the rest is its caller's to measure.
    """
    if is_surely_over(struct, bytes_max):
        raise invalid_field(field, "TOO_LARGE", f"at most {bytes_max} bytes")
    odd: list[Any] = []
    document = _converted(struct, odd)
    if odd:
        raise invalid_fields(sift(document, field).faults)
    return document


def document_of(struct: struct_pb2.Struct) -> dict[str, Any]:
    """All that is in it, to the first level that is too deep, which is empty then."""
    return _converted(struct, [])


def is_surely_over(struct: struct_pb2.Struct, bytes_max: int) -> bool:
    """Whether it holds more values than JSON of so many bytes can. Looks at no more of them than that."""
    left = bytes_max
    if struct.ByteSize() <= left // _VALUE_BYTES_MIN:  # a value has two bytes there too
        return False
    ahead: list[Any] = [struct]
    while ahead:
        inside = ahead.pop()
        if isinstance(inside, struct_pb2.Struct):
            left -= len(inside.fields) * _MEMBER_BYTES_MIN + sum(map(len, inside.fields))
            values = inside.fields.values()
        else:
            left -= len(inside.values) * _VALUE_BYTES_MIN
            values = inside.values
        if left < 0:
            return True
        for value in values:
            kind = value.WhichOneof("kind")
            if kind == "struct_value":
                ahead.append(value.struct_value)
            elif kind == "list_value":
                ahead.append(value.list_value)
            elif kind != "number_value":
                left -= _WORD_BYTES_MORE.get(kind, 0)
                if left < 0:
                    return True
    return False


def _converted(struct: struct_pb2.Struct, odd: list[Any]) -> dict[str, Any]:
    """`odd` gets each value that cannot be kept: to see that there is none costs a start nothing so."""
    return {key: _value(value, 1, odd) for key, value in struct.fields.items()}


def _value(value: struct_pb2.Value, depth: int, odd: list[Any]) -> Any:
    match value.WhichOneof("kind"):
        case "string_value":
            return value.string_value
        case "number_value":
            if not math.isfinite(value.number_value):
                odd.append(value.number_value)
            return number(value.number_value)
        case "struct_value":
            if depth < DEPTH_MAX:
                fields = value.struct_value.fields
                return {key: _value(inner, depth + 1, odd) for key, inner in fields.items()}
            odd.append({})
            return {}
        case "list_value":
            if depth < DEPTH_MAX:
                return [_value(inner, depth + 1, odd) for inner in value.list_value.values]
            odd.append([])
            return []
        case "bool_value":
            return value.bool_value
        case _:
            return None


def fill(struct: struct_pb2.Struct, content: bytes) -> None:
    """A JSON object into `struct`; what is no object becomes `{"value": …}`."""
    if not content:
        return
    document = orjson.loads(content)
    struct.SetInParent()
    _fill(struct, document if isinstance(document, dict) else {"value": document})


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
