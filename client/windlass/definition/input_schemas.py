"""Compiles an inputSchema with jsonschema-rs. It must be complete in itself.

Hazards: by default the library follows `$ref` to http and files; the retriever here refuses every request. Patterns run
on an engine without backtracking, so that no input makes one run for ever.
"""

from typing import Any, NoReturn


class SchemaFault(Exception):
    """The value is no schema, or it points outside itself; the text is for its author."""


def compiled(schema: Any) -> Any:
    """A validator of jsonschema-rs; raises SchemaFault."""
    import jsonschema_rs

    if not isinstance(schema, dict | bool):
        raise SchemaFault("a JSON Schema is an object")
    try:
        return jsonschema_rs.validator_for(schema, retriever=_refuse, pattern_options=jsonschema_rs.RegexOptions())
    except ValueError as failure:
        # `message` lacks the instance, which the library adds to its text.
        raise SchemaFault(_told(getattr(failure, "message", failure))) from None


def schema_fault(schema: Any) -> str | None:
    """Says why this is no usable JSON Schema; None when it is one. A service has a limited child compile it instead,
    because the schema of a stranger may cost too much."""
    try:
        compiled(schema)
    except SchemaFault as fault:
        return str(fault)
    return None


def _refuse(uri: str) -> NoReturn:
    raise ValueError("a schema must not point outside itself")


def _told(failure: object) -> str:
    message = str(failure).splitlines()[0][:300]
    if "retrieving it failed" in message:
        return f"points outside itself: {message.split(' is not present')[0].removeprefix('Resource ')}"
    return message
