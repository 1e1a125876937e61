"""Checks a part of a definition against its JSON Schema, and says what does not fit as faults.

Beside the members of JSON Schema, `x-reason` is the reason of a fault in that part, `x-null-reason` the reason when the
part is null, and `description` the message. The keywords `duration` and `time` stand for the grammars of durations.py,
and `duration-between` has the least and the most of a duration in microseconds.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, reduce
from operator import getitem
from typing import Any, Final

from windlass.definition import fields
from windlass.definition.config_schemas import CONFIG_SCHEMAS, LOOP_MODULES, OF_BODY, RAW_MEMBERS
from windlass.definition.durations import parse_duration, parse_time
from windlass.definition.faults import Fault, child
from windlass.definition.templates import is_template

# Each fault costs jsonschema-rs some 20 µs and 3 KiB, and it finds all faults before it returns the first. So only the
# first fault of a larger part is named.
VALUES_TOLD_MAX: Final = 2_000
MESSAGE_CHARACTERS_MAX: Final = 300

_OWN: Final[Mapping[str, fields.Schema]] = {
    "workflow": fields.WORKFLOW,
    "node": fields.NODE,
    "compensation": fields.COMPENSATION,
    "edge": fields.EDGE,
}
_REASONS: Final = {
    "required": "REQUIRED",
    "oneOf": "REQUIRED",
    "enum": "UNKNOWN_VALUE",
    "minimum": "OUT_OF_RANGE",
    "maximum": "OUT_OF_RANGE",
    "minLength": "REQUIRED",
    "maxLength": "TOO_LONG",
    "maxItems": "TOO_LONG",
    "additionalProperties": "UNKNOWN_FIELD",
}
_TYPES: Final = {
    "object": "an object",
    "array": "a list",
    "string": "text",
    "boolean": "true or false",
    "number": "a number",
    "integer": "a whole number",
}


def field_faults(kind: str, part: Any, path: str) -> Iterator[Fault]:
    """The faults in the own fields of a workflow, a node, a compensation or an edge."""
    for error in _misfits(_validator(kind), part):
        yield from _faults_of(error, _OWN[kind], path)


def config_faults(module: str, config: Mapping[str, Any], path: str) -> Iterator[Fault]:
    """The faults of a built-in module's config. Nothing is known about the config of other modules."""
    if module not in CONFIG_SCHEMAS:
        return
    for error in _misfits(_validator(module), config):
        if not _is_rendered(module, config, error.instance_path):
            yield from _faults_of(error, CONFIG_SCHEMAS[module], path)


def _is_rendered(module: str, config: Any, steps: list[Any]) -> bool:
    """True where a template stands that is rendered: only the runner knows what it becomes."""
    value = reduce(getitem, steps, config)
    if not (isinstance(value, str) and is_template(value)):
        return False
    if module in LOOP_MODULES:
        # A member of the body is rendered with each item, the body itself is not.
        return bool(steps[0] not in OF_BODY or steps[1:] in (["workflow"], ["version"]))
    return bool(steps[0] != RAW_MEMBERS.get(module))


def _misfits(validator: Any, value: Any) -> Iterator[Any]:
    """All errors, or the first error of a large value."""
    import jsonschema_rs

    if validator.is_valid(value):
        return
    if not _is_large(value):
        yield from validator.iter_errors(value)
        return
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        yield error


def _is_large(value: Any) -> bool:
    """True if its lists and objects have many values. Its own members do not count: unknown ones are one error."""
    values, ahead = 0, [value] if isinstance(value, dict | list) else []
    while ahead and values <= VALUES_TOLD_MAX:
        inner = ahead.pop()
        for each in inner.values() if isinstance(inner, dict) else inner:
            if isinstance(each, dict | list):
                values += len(each)
                ahead.append(each)
    return values > VALUES_TOLD_MAX


def _faults_of(error: Any, schema: Any, path: str) -> Iterator[Fault]:
    for step in error.instance_path:
        path = f"{path}[{step}]" if isinstance(step, int) else child(path, step)
    *parents, keyword = error.schema_path
    part = reduce(getitem, parents, schema)
    reason = part.get("x-reason") or _REASONS.get(keyword, "WRONG_TYPE")
    message = part.get("description")
    if keyword == "type" and error.instance is None and "x-null-reason" in part:
        yield Fault(path, part["x-null-reason"], f"must be set: {message}")
    elif keyword == "required":
        described = part["properties"][error.kind.property].get("description")
        words = f"must be set: {described}" if described else "must be set"
        yield Fault(child(path, error.kind.property), "REQUIRED", words)
    elif keyword == "additionalProperties":
        known = ", ".join(sorted(part.get("properties", ()))) or "none"
        for key in error.kind.unexpected:
            yield Fault(child(path, key), reason, message or f"there is no such field; known fields: {known}")
    elif keyword == "type" and not message:
        kinds = [part["type"]] if isinstance(part["type"], str) else part["type"]
        yield Fault(path, reason, f"must be {' or '.join(_TYPES[kind] for kind in kinds)}")
    else:
        yield Fault(path, reason, message or error.message[:MESSAGE_CHARACTERS_MAX])


@cache
def _validator(name: str) -> Any:
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(
        _OWN.get(name) or CONFIG_SCHEMAS[name], keywords=_KEYWORDS, pattern_options=jsonschema_rs.RegexOptions()
    )


def _keyword(check: Callable[[Any, Any], object]) -> type[Any]:
    """A keyword of jsonschema-rs. `check` gets its value in the schema and what is checked, and raises ValueError."""

    class Keyword:
        def __init__(self, parent: Mapping[str, Any], value: Any, path: list[str | int]) -> None:
            self.value = value

        def validate(self, instance: Any) -> None:
            check(self.value, instance)

    return Keyword


def _is_between(bounds: list[int], written: Any) -> None:
    try:
        length = parse_duration(written)
    except ValueError:
        return  # this is another fault
    if not bounds[0] <= length <= bounds[1]:
        raise ValueError


_KEYWORDS: Final = {
    "duration": _keyword(lambda _, written: parse_duration(written)),
    "duration-between": _keyword(_is_between),
    "time": _keyword(lambda _, written: parse_time(written)),
}
