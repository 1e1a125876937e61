"""JSON Schema as jsonschema-rs reads it, shut off from everything outside the schema itself.

Hazards: by default the library follows `$ref` to http and files: the retriever here refuses whatever it is asked for.
Patterns run on an engine without backtracking, so no input can make one take for ever. Of an input that does not fit,
the library finds all faults before it gives the first, and an alternative's faults hold those of all its branches: they
are only asked for where they cannot be many.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Any, Final, NamedTuple, NoReturn

import jsonschema_rs

from services.api.core.schema_cost import is_extreme
from services.api.core.schema_work import Excess, work_of
from services.chassis.errors import Violation

VIOLATIONS_MAX: Final = 50
# Of a whole input, before its faults are no longer all looked for: each may cost 20 µs and 3 KiB.
EVALUATIONS_TOLD_MAX: Final = 20_000
# A fault holds the value that it is about.
CHARACTERS_PER_FAULT: Final = 1_000
# Where fewer violations are wanted, because there are many documents: for each of them.
EVALUATIONS_PER_VIOLATION: Final = 100
# Of a whole input, in looks that compare little: about 0.4 s, in which this process does nothing else.
CHECKED_MAX: Final = 40_000_000
# What the text of an input costs at each position of a pattern, in looks: twice as much was never measured.
LOOKS_PER_POSITION: Final = 0.4
# Numbers that are no integers, and those that have hundreds of digits when written out, are compared so much slower.
_FRACTION_VALUES: Final = 10
_EXTREME_VALUES: Final = 100
# More than one byte of an input can be worth.
_VALUES_PER_BYTE_MAX: Final = 20


class SchemaFault(Exception):
    """It is no schema, or points outside itself; the text is for its author."""


class InputCheck:
    """One compiled schema."""

    def __init__(self, schema: Any) -> None:
        work = work_of(schema)
        if isinstance(work, Excess):
            raise SchemaFault(work.message)
        self._work = work
        try:
            self._validator = jsonschema_rs.validator_for(
                schema, retriever=_refuse, pattern_options=jsonschema_rs.RegexOptions()
            )
        except jsonschema_rs.ValidationError as failure:
            raise SchemaFault(_fault(failure)) from None
        except ValueError as failure:
            raise SchemaFault(str(failure).splitlines()[0][:300]) from None

    def violations(
        self, document: Any, most: int = VIOLATIONS_MAX, bytes_most: float = math.inf
    ) -> list[Violation]:
        """Empty when the document fits. All of them are found before the first is told, so the fewer are wanted, the
        smaller is the document of which more than one is told. It is known to have at most `bytes_most` as JSON.
        """
        if self._cost(_Size(bytes_most * _VALUES_PER_BYTE_MAX, bytes_most)) > CHECKED_MAX:
            if self._cost(_size(document)) > CHECKED_MAX:
                message = "is too large for all that the inputSchema compares each value with"
                return [Violation("input", "TOO_LARGE", message)]
        if self._validator.is_valid(document):
            return []
        worth = EVALUATIONS_TOLD_MAX if most >= VIOLATIONS_MAX else EVALUATIONS_PER_VIOLATION * most
        size = _size(document)
        if self._work.faults * (size.values + size.characters // CHARACTERS_PER_FAULT) <= worth:
            return [_violation(error) for error in islice(self._validator.iter_errors(document), most)]
        if self._work.has_alternatives:
            return [
                Violation("input", "SCHEMA", "does not fit the inputSchema; it is too large to say where")
            ]
        return [self._first(document)]

    def _cost(self, size: _Size) -> float:
        # A schema without patterns has no positions, and nothing times infinity is no number.
        text = self._work.positions * size.characters * LOOKS_PER_POSITION if self._work.positions else 0
        return (self._work.weight * (size.values + size.slowness)) + text

    def _first(self, document: Any) -> Violation:
        try:
            self._validator.validate(document)
        except jsonschema_rs.ValidationError as error:
            return _violation(error)
        raise AssertionError("a document that is not valid was validated")


class JsonSchemaReader:
    def fault(self, schema: Any) -> str | None:
        if not isinstance(schema, dict | bool):
            return "a JSON Schema is an object"
        try:
            InputCheck(schema)
        except SchemaFault as fault:
            return str(fault)
        return None


def _refuse(uri: str) -> NoReturn:
    raise ValueError("a schema must not point outside itself")


def _fault(failure: jsonschema_rs.ValidationError) -> str:
    message = str(failure.message).splitlines()[0][:300]
    if "retrieving it failed" in message:
        return f"points outside itself: {message.split(' is not present')[0].removeprefix('Resource ')}"
    return message


class _Size(NamedTuple):
    values: float
    # Of texts and names.
    characters: float
    # What its numbers add that are slow to compare, in values.
    slowness: float = 0


def _size(document: Any) -> _Size:
    values, characters, slowness, ahead = 0, 0, 0, [document]
    while ahead:
        value = ahead.pop()
        values += 1
        if isinstance(value, dict):
            characters += sum(map(len, value))
            ahead.extend(value.values())
        elif isinstance(value, list):
            ahead.extend(value)
        elif isinstance(value, str):
            characters += len(value)
        elif isinstance(value, float):
            slowness += _EXTREME_VALUES if is_extreme(value) else _FRACTION_VALUES
    return _Size(values, characters, slowness)


def _violation(error: jsonschema_rs.ValidationError) -> Violation:
    return Violation(_path(error.instance_path), _reason(error), error.message[:500])


def _path(instance_path: list[str | int]) -> str:
    parts = ["input"]
    parts.extend(f"[{part}]" if isinstance(part, int) else f".{part}" for part in instance_path)
    return "".join(parts)[:200]


def _reason(error: jsonschema_rs.ValidationError) -> str:
    """`required` → REQUIRED: the keyword of the schema that was not kept."""
    keyword = str(error.schema_path[-1]) if error.schema_path else "schema"
    return "".join(f"_{letter}" if letter.isupper() else letter for letter in keyword).upper()
