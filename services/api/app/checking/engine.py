"""Finds where an input does not fit its schema, with jsonschema-rs.

Hazard: the library holds the interpreter's lock while it works; only the end of the process stops it.
"""

from itertools import islice
from typing import Any, Final, NamedTuple

import jsonschema_rs

MESSAGE_CHARACTERS_MAX: Final = 500
PATH_CHARACTERS_MAX: Final = 200


class Misfit(NamedTuple):
    """The place in the input, the keyword of the schema that it breaks, and a description."""

    path: str
    reason: str
    message: str


def misfits(validator: Any, document: Any, most: int) -> list[Misfit]:
    """The first `most` misfits. For more than one the library finds all, which may take much time and memory."""
    if most > 1:
        return [_misfit(error) for error in islice(validator.iter_errors(document), most)]
    try:
        validator.validate(document)
    except jsonschema_rs.ValidationError as error:
        return [_misfit(error)]
    return []


def _misfit(error: jsonschema_rs.ValidationError) -> Misfit:
    return Misfit(_path(error.instance_path), _reason(error), error.message[:MESSAGE_CHARACTERS_MAX])


def _path(instance_path: list[str | int]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in instance_path)
    return f"input{''.join(parts)}"[:PATH_CHARACTERS_MAX]


def _reason(error: jsonschema_rs.ValidationError) -> str:
    """The broken keyword of the schema: `minLength` → MIN_LENGTH."""
    keyword = str(error.schema_path[-1]) if error.schema_path else "schema"
    return "".join(f"_{letter}" if letter.isupper() else letter for letter in keyword).upper()
