"""How an input does not fit its schema, as jsonschema-rs tells it.

Hazard: the library holds the interpreter's lock for as long as it is at work, and nothing but the end of its process
stops it.
"""

from itertools import islice
from typing import Any, Final, NamedTuple

import jsonschema_rs

MESSAGE_CHARACTERS_MAX: Final = 500
PATH_CHARACTERS_MAX: Final = 200


class Misfit(NamedTuple):
    """Where an input does not fit, which keyword was not kept, and how."""

    path: str
    reason: str
    message: str


def first_misfit(validator: Any, document: Any) -> list[Misfit]:
    """At most one, found much sooner than all of them are."""
    try:
        validator.validate(document)
    except jsonschema_rs.ValidationError as error:
        return [_misfit(error)]
    return []


def misfits(validator: Any, document: Any, most: int) -> list[Misfit]:
    """The first of them. The library finds all before it gives one, which may take long and much memory."""
    return [_misfit(error) for error in islice(validator.iter_errors(document), most)]


def _misfit(error: jsonschema_rs.ValidationError) -> Misfit:
    return Misfit(_path(error.instance_path), _reason(error), error.message[:MESSAGE_CHARACTERS_MAX])


def _path(instance_path: list[str | int]) -> str:
    parts = ["input"]
    parts.extend(f"[{part}]" if isinstance(part, int) else f".{part}" for part in instance_path)
    return "".join(parts)[:PATH_CHARACTERS_MAX]


def _reason(error: jsonschema_rs.ValidationError) -> str:
    """`required` → REQUIRED: the keyword of the schema that was not kept."""
    keyword = str(error.schema_path[-1]) if error.schema_path else "schema"
    return "".join(f"_{letter}" if letter.isupper() else letter for letter in keyword).upper()
