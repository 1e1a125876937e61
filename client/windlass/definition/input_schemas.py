"""Whether an inputSchema is a JSON Schema that stands on its own, as jsonschema-rs reads it.

Hazards: by default the library follows `$ref` to http and files: the retriever here refuses whatever it is asked for.
Patterns run on an engine without backtracking, so no input can make one take for ever.
"""

from typing import Any, NoReturn


class SchemaFault(Exception):
    """It is no schema, or points outside itself; the text is for its author."""


def compiled(schema: Any) -> Any:
    """A validator of jsonschema-rs; raises SchemaFault."""
    import jsonschema_rs

    if not isinstance(schema, dict | bool):
        raise SchemaFault("a JSON Schema is an object")
    try:
        return jsonschema_rs.validator_for(
            schema, retriever=_refuse, pattern_options=jsonschema_rs.RegexOptions()
        )
    except ValueError as failure:
        # Without the instance, which the library adds to the text.
        raise SchemaFault(_told(getattr(failure, "message", failure))) from None


def schema_fault(schema: Any) -> str | None:
    """Why this is no JSON Schema that stands on its own; None when it is one. A service, which must not spend too much
    work on the schema of a stranger, has another process compile it."""
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
