"""`google.protobuf.Struct` to Python values and back, at the only edge where Struct exists.

Struct knows no integers: a number that is whole becomes an int again, as its author wrote it, while it is small
enough for a double to hold every whole number (2^53). NaN and infinities are refused here, because JSON has none and
orjson would turn them into null in silence.
"""

from __future__ import annotations

from typing import Any, Final

import orjson
from google.protobuf import struct_pb2

from services.api.handler.refusals import invalid_field

_WHOLE_MAX: Final = 2.0**53


def to_dict(struct: struct_pb2.Struct, field: str) -> dict[str, Any]:
    """`field` names the Struct in a refusal."""
    try:
        return {key: _value(value) for key, value in struct.fields.items()}
    except (ValueError, OverflowError):
        raise invalid_field(field, "NOT_A_NUMBER", "NaN and infinities are no JSON") from None


def _value(value: struct_pb2.Value) -> Any:
    match value.WhichOneof("kind"):
        case "string_value":
            return value.string_value
        case "number_value":
            return _number(value.number_value)
        case "struct_value":
            return {key: _value(inner) for key, inner in value.struct_value.fields.items()}
        case "list_value":
            return [_value(inner) for inner in value.list_value.values]
        case "bool_value":
            return value.bool_value
        case _:
            return None


def _number(number: float) -> int | float:
    # int() raises for what is no number, which is what we are here to find.
    whole = int(number)
    return whole if whole == number and -_WHOLE_MAX <= number <= _WHOLE_MAX else number


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
