"""The JSON Schema of each built-in module's config, and the faults of a config that does not fit.

A value that holds a template is not checked here, because only the runner knows what it becomes. In a schema,
`x-reason` is the reason of a fault in that part, and `description` its message.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, Final

from windlass.definition.durations import SECOND, parse_duration, parse_time
from windlass.definition.faults import Fault, child
from windlass.definition.limits import BRANCH_FORM
from windlass.definition.templates import is_template

Schema = dict[str, Any]

# Each fault costs jsonschema-rs some 20 µs and 3 KiB, and it finds all faults before it returns the first. So only the
# first fault of a larger config is named.
VALUES_TOLD_MAX: Final = 2_000
MESSAGE_CHARACTERS_MAX: Final = 300

DELAY_SECONDS_MAX: Final = 3_600
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_DURATION: Final[Schema] = {
    "type": ["string", "number"],
    "format": "duration-or-seconds",
    "minimum": 0,
    "maximum": 365 * 86_400,
    "x-reason": "BAD_DURATION",
    "description": 'a duration is written like "30s", "250ms", "5m" or "1h", at most a year',
}
_DELAY: Final[Schema] = {
    "allOf": [
        _DURATION,
        {
            "format": "one-hour",
            "maximum": DELAY_SECONDS_MAX,
            "x-reason": "OUT_OF_RANGE",
            "description": "delay@1 keeps a place of its runner, so it takes an hour at most; use sleep@1",
        },
    ]
}
_TIME: Final[Schema] = {
    "type": "string",
    "format": "time-with-offset",
    "x-reason": "BAD_TIME",
    "description": 'a time is written like "2026-11-01T00:00:00Z", at most "9999-12-31T23:59:59Z"',
}
_EXPRESSION: Final[Schema] = {"type": "string", "description": 'an expression is text: write "input.n > 5" in quotes'}
_BRANCH: Final[Schema] = {
    "type": "string",
    "pattern": f"^{BRANCH_FORM}$",
    "x-reason": "MALFORMED_BRANCH",
    "description": f"a branch is text of the form {BRANCH_FORM}",
}
_TEXTS: Final[Schema] = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


CONFIG_SCHEMAS: Final[Mapping[str, Schema]] = {
    "noop@1": _object(),
    "transform@1": _object(),
    "join@1": _object(),
    "sleep@1": {
        **_object(duration=_DURATION, until=_TIME),
        "oneOf": [{"required": ["duration"]}, {"required": ["until"]}],
        "description": "sleep@1 needs either a duration or the time until when",
    },
    "condition@1": _object(("expression",), expression=_EXPRESSION),
    "switch@1": _object(
        ("cases",),
        cases={"type": "array", "items": _object(("when", "branch"), when=_EXPRESSION, branch=_BRANCH)},
        default=_BRANCH,
    ),
    "delay@1": _object(("duration",), duration=_DELAY),
    "fail@1": _object(
        type={"type": "string"}, message={"type": "string"}, untilAttempt={"type": "integer", "minimum": 1}
    ),
    "http.request@1": _object(
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
        timeout=_DURATION,
    ),
}
# The module evaluates this member itself, as it stands: no template in it is ever rendered.
RAW_MEMBERS: Final[Mapping[str, str]] = {"condition@1": "expression", "switch@1": "cases"}

_REASONS: Final = {
    "type": "WRONG_TYPE",
    "required": "REQUIRED",
    "oneOf": "REQUIRED",
    "enum": "UNKNOWN_VALUE",
    "minimum": "OUT_OF_RANGE",
}


def config_faults(module: str, config: Mapping[str, Any], path: str) -> Iterator[Fault]:
    """The faults of a built-in module's config. Nothing is known about the config of other modules."""
    if module not in CONFIG_SCHEMAS:
        return
    for error in _misfits(_validator(module), config):
        value: Any = config
        place, is_raw = path, False
        for step in error.instance_path:
            is_raw = is_raw or (value is config and RAW_MEMBERS.get(module) == step)
            value = value[step]
            place = f"{place}[{step}]" if isinstance(step, int) else child(place, step)
        if is_raw or not (isinstance(value, str) and is_template(value)):
            yield from _faults_of(error, CONFIG_SCHEMAS[module], place)


def _misfits(validator: Any, config: Any) -> Iterator[Any]:
    """All errors, or the first error of a large config."""
    import jsonschema_rs

    if not _is_large(config):
        yield from validator.iter_errors(config)
        return
    try:
        validator.validate(config)
    except jsonschema_rs.ValidationError as error:
        yield error


def _is_large(config: Any) -> bool:
    values, ahead = 0, [config]
    while ahead and values <= VALUES_TOLD_MAX:
        value = ahead.pop()
        values += 1
        if isinstance(value, dict | list):
            values += len(value)
            ahead.extend(value.values() if isinstance(value, dict) else value)
    return values > VALUES_TOLD_MAX


def _faults_of(error: Any, schema: Any, path: str) -> Iterator[Fault]:
    *parents, keyword = error.schema_path
    for step in parents:
        schema = schema[step]
    reason = schema.get("x-reason") or _REASONS.get(keyword, "WRONG_TYPE")
    message = schema.get("description") or error.message[:MESSAGE_CHARACTERS_MAX]
    if keyword == "additionalProperties":
        known = ", ".join(sorted(schema["properties"])) or "none"
        for key in error.kind.unexpected:
            yield Fault(child(path, key), "UNKNOWN_FIELD", f"this module has no such setting; it has {known}")
    elif keyword == "required":
        yield Fault(child(path, error.kind.property), "REQUIRED", "must be set")
    else:
        yield Fault(path, reason, message)


@cache
def _validator(module: str) -> Any:
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(
        CONFIG_SCHEMAS[module], validate_formats=True, formats=_FORMATS, pattern_options=jsonschema_rs.RegexOptions()
    )


def _can_parse(parse: Callable[[str], int], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _is_within_an_hour(text: str) -> bool:
    """True also for text that is no duration: that is another fault."""
    return not _can_parse(parse_duration, text) or parse_duration(text) <= DELAY_SECONDS_MAX * SECOND


_FORMATS: Final[dict[str, Callable[..., bool]]] = {
    "duration-or-seconds": partial(_can_parse, parse_duration),
    "time-with-offset": partial(_can_parse, parse_time),
    "one-hour": _is_within_an_hour,
}
