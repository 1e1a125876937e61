"""Parses the text of a definition into a JSON value, and knows the line of each path in YAML (`yaml_text.py`).

In JSON and YAML, a key that occurs twice in one object is a fault.
"""

import json
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from windlass.definition.faults import Fault, Faults, shown_key
from windlass.definition.json_values import number
from windlass.definition.limits import DEFINITION_BYTES_MAX

# The line of a path; 0 when it is unknown.
LineOf = Callable[[str], int]


class Format(Enum):
    JSON = "JSON"
    YAML = "YAML"


def _nowhere(path: str) -> int:
    return 0


class Parsed(NamedTuple):
    document: Any
    # The faults of the text itself. The document is None when the text could not be parsed.
    faults: Sequence[Fault] = ()
    line_of: LineOf = _nowhere


def parse(text: str, format_: Format) -> Parsed:
    if len(text.encode()) > DEFINITION_BYTES_MAX:
        return _unreadable("TOO_LARGE", f"at most {DEFINITION_BYTES_MAX} bytes")
    if "\x00" in text:
        line = text.count("\n", 0, text.index("\x00")) + 1
        return _unreadable("NUL", "the text contains a NUL character", line)
    return _parse_json(text) if format_ is Format.JSON else _parse_yaml(text)


def _unreadable(reason: str, message: str, line: int = 0) -> Parsed:
    return Parsed(None, Faults([Fault("", reason, message, line=line)]))


def _parse_json(text: str) -> Parsed:
    import orjson

    faults = Faults()

    def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    message = f"the key {shown_key(key)!r} occurs twice in one object"
                    faults.append(Fault(shown_key(key), "DUPLICATE_KEY", message))
                seen.add(key)
        return members

    try:
        # orjson refuses NaN, lone surrogates and numbers beyond a double, which the standard library accepts.
        orjson.loads(text)
        document = json.loads(text, object_pairs_hook=unique, parse_int=_number, parse_float=_number)
    except orjson.JSONDecodeError as error:
        return _unreadable("SYNTAX", f"this is not JSON: {error.msg}", error.lineno)
    except RecursionError:  # this begins at about 900 levels; orjson itself stops at 1,024
        return _unreadable("TOO_DEEP", "JSON is nested without end")
    return Parsed(document, faults)


def _number(digits: str) -> int | float:
    return number(float(digits))


def _parse_yaml(text: str) -> Parsed:
    from windlass.definition.yaml_text import Unreadable, YamlText

    try:
        read = YamlText(text)
    except Unreadable as unreadable:
        return Parsed(None, Faults([unreadable.fault]))
    return Parsed(read.document, read.faults, read.line_of)
