"""The file of an exported execution: one part a line, as JSON that people can read and compare (docs/replay.md).

It is protobuf's JSON with three changes. Fields have the names of the proto files. Numbers are numbers. Bytes that are
text are text, because most of them are JSON; others are "base64:" and their Base64.
"""

import base64
import json
from typing import Any, Final

from windlass.cli.output import visible_json

_BASE64: Final = "base64:"
_TIMESTAMP: Final = "google.protobuf.Timestamp"


class NotAnExport(ValueError):
    """The message says what is wrong."""


def line_of(part: Any) -> str:
    """Without its end."""
    return visible_json(json.dumps(_plain(part), ensure_ascii=False, separators=(",", ":")))


def part_of(line: str | bytes, part: Any) -> Any:
    """Fill an empty part with what the line says. Raises NotAnExport."""
    try:
        # Bytes are decoded here, because json would guess another encoding than UTF-8.
        _fill(part, json.loads(line.decode() if isinstance(line, bytes) else line))
    except NotAnExport:
        raise
    except json.JSONDecodeError as fault:
        # Its own message counts lines, of which there is one here.
        raise NotAnExport(f"this is not JSON: {fault.msg} at character {fault.pos + 1}") from None
    except UnicodeDecodeError:
        raise NotAnExport("this is not text in UTF-8") from None
    except (ValueError, RecursionError) as fault:
        raise NotAnExport(str(fault)) from None
    return part


def _plain(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if _is_map(field):
            of_value = field.message_type.fields_by_name["value"]
            found[field.name] = {key: _value(of_value, value[key]) for key in sorted(value)}
        elif field.is_repeated:
            found[field.name] = [_value(field, item) for item in value]
        else:
            found[field.name] = _value(field, value)
    return found


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return value.ToJsonString() if field.message_type.full_name == _TIMESTAMP else _plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return _text(value) if isinstance(value, bytes) else value


def _text(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and (text or not value) and not text.startswith(_BASE64):
        return text
    return _BASE64 + base64.b64encode(value).decode()


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _fill(message: Any, plain: Any) -> None:
    if not isinstance(plain, dict):
        raise NotAnExport(f"{message.DESCRIPTOR.name} is no JSON object")
    message.SetInParent()
    for name, value in plain.items():
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            raise NotAnExport(f"{message.DESCRIPTOR.name} has no field {name!r}")
        try:
            _put(message, field, value)
        except NotAnExport:
            raise
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError):
            raise NotAnExport(f"the value of {name!r} is malformed") from None


def _put(message: Any, field: Any, value: Any) -> None:
    found = getattr(message, field.name)
    if _is_map(field):
        found.update({key: _read(field.message_type.fields_by_name["value"], each) for key, each in value.items()})
    elif field.is_repeated and field.message_type is not None:
        for item in _list(value):
            _fill(found.add(), item)
    elif field.is_repeated:
        found.extend([_read(field, item) for item in _list(value)])
    elif field.message_type is None:
        setattr(message, field.name, _read(field, value))
    elif field.message_type.full_name == _TIMESTAMP:
        found.FromJsonString(value)
    else:
        _fill(found, value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _read(field: Any, value: Any) -> Any:
    if field.enum_type is not None and isinstance(value, str):
        return field.enum_type.values_by_name[value].number
    if field.type != field.TYPE_BYTES:
        return value
    if value.startswith(_BASE64):
        return base64.b64decode(value.removeprefix(_BASE64), validate=True)
    return value.encode()
