"""The JSON Schema of each built-in module's config, in the form that `schema_faults.py` describes."""

from collections.abc import Mapping
from typing import Final

from windlass.definition.durations import SECOND
from windlass.definition.fields import BRANCH, DURATION, Schema, object_of

DELAY_SECONDS_MAX: Final = 3_600
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_DELAY: Final[Schema] = {
    "allOf": [
        DURATION,
        {
            "duration-between": [0, DELAY_SECONDS_MAX * SECOND],
            "x-reason": "OUT_OF_RANGE",
            "description": "delay@1 keeps a place of its runner, so it takes an hour at most; use sleep@1",
        },
    ]
}
_TIME: Final[Schema] = {"time": True, "x-reason": "BAD_TIME"}
_EXPRESSION: Final[Schema] = {"type": "string", "description": 'an expression is text: write "input.n > 5" in quotes'}
_TEXTS: Final[Schema] = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
_EITHER: Final[Schema] = {
    "oneOf": [{"required": ["duration"]}, {"required": ["until"]}],
    "description": "sleep@1 needs either a duration or the time until when",
}

CONFIG_SCHEMAS: Final[Mapping[str, Schema]] = {
    "noop@1": object_of(),
    "transform@1": object_of(),
    "join@1": object_of(),
    "state.set@1": object_of(),
    "sleep@1": {**object_of(duration=DURATION, until=_TIME), "allOf": [_EITHER]},
    "condition@1": object_of(("expression",), expression=_EXPRESSION),
    "switch@1": object_of(
        ("cases",),
        cases={"type": "array", "items": object_of(("when", "branch"), when=_EXPRESSION, branch=BRANCH)},
        default=BRANCH,
    ),
    "delay@1": object_of(("duration",), duration=_DELAY),
    "fail@1": object_of(
        type={"type": "string"}, message={"type": "string"}, untilAttempt={"type": "integer", "minimum": 1}
    ),
    "http.request@1": object_of(
        ("url",),
        method={"enum": [*_METHODS, *(method.lower() for method in _METHODS)]},
        url={
            "type": "string",
            "pattern": "^https?://",
            "x-reason": "BAD_URL",
            "description": "a url is text that begins with http:// or https://",
        },
        headers=_TEXTS,
        query=_TEXTS,
        body={},
        json={},
        timeout=DURATION,
    ),
}
# The module evaluates this member itself, as it stands: no template in it is ever rendered.
RAW_MEMBERS: Final[Mapping[str, str]] = {"condition@1": "expression", "switch@1": "cases"}
