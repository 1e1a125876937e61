"""Schemas judged before they are taken, and inputs checked against them, as far as that cannot take long.

Hazard: of an input that does not fit, the library finds all faults before it gives the first, and an alternative's
faults hold those of all its branches: they are only asked for where they cannot be many.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final, NamedTuple

import orjson

from services.api.app.checking.engine import first_misfit, misfit
from services.api.core.schema_cost import is_extreme
from services.api.core.schema_work import Excess, work_of
from services.chassis.grpc.errors import Violation
from windlass.definition.input_schemas import SchemaFault, compiled, schema_fault

INPUT_BYTES_MAX: Final = 256 * 1024
VIOLATIONS_MAX: Final = 50
# Of a whole input, before its faults are no longer all looked for: each may cost 20 µs and 3 KiB.
EVALUATIONS_TOLD_MAX: Final = 20_000
# A fault holds the value that it is about.
CHARACTERS_PER_FAULT: Final = 1_000
# Where fewer violations are wanted, because there are many documents: for each of them.
EVALUATIONS_PER_VIOLATION: Final = 100
# Of a whole input, in looks that compare little: about 0.1 s, in which this process does nothing else.
CHECKED_HERE_MAX: Final = 10_000_000
# What the text of an input costs at each position of a pattern, in looks: twice as much was never measured.
LOOKS_PER_POSITION: Final = 0.4
# Numbers that are no integers, and those that have hundreds of digits when written out, are compared so much slower.
_FRACTION_VALUES: Final = 10
_EXTREME_VALUES: Final = 100
# More than one byte of an input can be worth.
_VALUES_PER_BYTE_MAX: Final = 20


class InputCheck:
    """One compiled schema."""

    def __init__(self, schema: Any) -> None:
        work = work_of(schema)
        if isinstance(work, Excess):
            raise SchemaFault(work.message)
        self._work = work
        self._validator = compiled(schema)
        # As JSON, where an input may have to be checked aside.
        self.source = (
            orjson.dumps(schema) if self._cost(_at_most(INPUT_BYTES_MAX)) > CHECKED_HERE_MAX else b""
        )

    def may_take_long(self, document: Any, size_bytes: int) -> bool:
        """Whether to check it aside, by `source`; `size_bytes`: of the document as JSON."""
        if not self.source or self._cost(_at_most(size_bytes)) <= CHECKED_HERE_MAX:
            return False
        return self._cost(_size(document)) > CHECKED_HERE_MAX

    def violations(self, document: Any, most: int = VIOLATIONS_MAX) -> list[Violation]:
        """Empty when the document fits. All of them are found before the first is told, so the fewer are wanted, the
        smaller is the document of which more than one is told.
        """
        if self._validator.is_valid(document):
            return []
        worth = EVALUATIONS_TOLD_MAX if most >= VIOLATIONS_MAX else EVALUATIONS_PER_VIOLATION * most
        size = _size(document)
        if self._work.faults * (size.values + size.characters // CHARACTERS_PER_FAULT) <= worth:
            found = islice(self._validator.iter_errors(document), most)
            return [Violation(*misfit(error)) for error in found]
        if self._work.has_alternatives:
            return [
                Violation("input", "SCHEMA", "does not fit the inputSchema; it is too large to say where")
            ]
        first = first_misfit(self._validator, document)
        assert first is not None, "a document that is not valid was validated"
        return [Violation(*first)]

    def _cost(self, size: _Size) -> float:
        text = self._work.positions * size.characters * LOOKS_PER_POSITION
        return self._work.weight * (size.values + size.slowness) + text


def fault_of_stranger(schema: Any) -> str | None:
    """Why this is no JSON Schema that can be used, or would take too much work to check; None when it is one."""
    return schema_fault(schema, InputCheck)


class _Size(NamedTuple):
    values: float
    # Of texts and names.
    characters: float
    # What its numbers add that are slow to compare, in values.
    slowness: float = 0


def _at_most(size_bytes: int) -> _Size:
    """Of any document of so many bytes."""
    return _Size(size_bytes * _VALUES_PER_BYTE_MAX, size_bytes)


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
