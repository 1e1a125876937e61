"""What a look costs, and what a schema may hold of what is compared: people's schemas are taken, hostile ones not."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from services.api.app.schema_reader import InputCheck, fault_of_stranger
from services.api.core.schema_cost import faults_of, positions_of, states_of, weight_of
from services.api.core.schema_work import Excess, Work, work_of

EMAIL = r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}$"
COUNTRIES = [f"C{number}" for number in range(250)]
NAMES = [f"p{number}" for number in range(100)]

ORDINARY: dict[str, tuple[Any, Any]] = {
    "country codes": ({"items": {"enum": COUNTRIES}}, ["C7"] * 40_000),
    "country codes or null": ({"items": {"enum": [*COUNTRIES, None]}}, ["C7", None] * 20_000),
    "status codes": ({"items": {"enum": list(range(100, 600))}}, [200] * 5_000),
    "an object": ({"items": {"const": {"kind": "order", "tags": ["a", "b"], "n": 1}}}, []),
    "required": ({"items": {"required": NAMES}}, [dict.fromkeys(NAMES, 1)] * 100),
    "places": ({"items": {"minimum": -180, "maximum": 180.5, "multipleOf": 0.25}}, [12.25] * 40_000),
    "addresses": ({"items": {"type": "string", "pattern": EMAIL}}, ["somebody@example.org"] * 11_000),
    "names": ({"items": {"pattern": r"^[\p{L}\p{N} .'-]{1,200}$"}}, ["Élodie"] * 1_000),
    "long text": ({"pattern": "^.{1,10000}$"}, "x" * 10_000),
    "base64": ({"pattern": "^[A-Za-z0-9+/]*$"}, "x" * 250_000),
    "dates": ({"items": {"pattern": r"^(?<year>\d{4})-(0[1-9]|1[0-2])-\d{2}$"}}, ["2026-11-19"] * 20_000),
    "extensions": ({"patternProperties": {"^x-": True}, "additionalProperties": False}, {"x-a": 1}),
    "a set": ({"uniqueItems": True}, list(range(40_000))),
}

COSTLY: dict[str, Any] = {
    "one large enum": {"not": {"$ref": "#/$defs/e"}, "$defs": {"e": {"enum": [*range(20_000), *"ab"]}}},
    "enum again and again": {
        "allOf": [{"not": {"$ref": "#/$defs/e"}}] * 600,
        "$defs": {"e": {"enum": [*range(1_000), "x"]}},
    },
    "large const": {"items": {"const": [[0] * 20_000]}},
    "numbers of 300 digits": {
        "enum": [1e300, 1e-300, *range(100)] + [number * 1e290 for number in range(1, 100)]
    },
    "names that ask for others": {"dependentRequired": {f"p{number}": [] for number in range(100_001)}},
}

LARGE_PATTERNS: dict[str, Any] = {
    "letters": {"allOf": [{"pattern": f"^\\p{{L}}{{{number},100}}$"} for number in range(20)]},
    "any letter": {"properties": {"a": {"pattern": "([^a].{100}\\W){900}"}}},
    "in a named group": {"pattern": "(?<n>a{1000}){1000}"},
    "nothing": {"pattern": "((){1000}^{1000}){1000}"},
    "very many": {"patternProperties": {f"^a{number}": True for number in range(10_000)}},
}

TOO_MUCH: dict[str, tuple[Any, Any]] = {
    "looks": ({"items": {"allOf": [{"type": "integer"}] * 999}}, [1] * 100_000),
    "integers": ({"items": {"not": {"enum": list(range(1_000))}}}, [-1.5] * 1_000),
    "fractions": ({"items": {"multipleOf": 0.5}}, [1e-300] * 30_000),
    "places of a pattern": ({"pattern": "a.{1000}c"}, "ab" * 100_000),
    "patterns for names": (
        {"patternProperties": {f"(a|b)*{number}": True for number in range(100)}},
        {"ab" * 120_000: 1},
    ),
    "patterns for each member": (
        {"patternProperties": {f"b{number}": True for number in range(1_500)}},
        {f"a{number}": 1 for number in range(30_000)},
    ),
    "sets of lists": ({"uniqueItems": True}, [[[]]] * 50_000),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_input_of_an_ordinary_schema_is_checked(name: str) -> None:
    schema, document = ORDINARY[name]
    assert fault_of_stranger(schema) is None
    assert InputCheck(schema).violations(document) == []


@pytest.mark.parametrize("name", COSTLY)
def test_schema_that_compares_too_much_is_refused(name: str) -> None:
    found = work_of(COSTLY[name])
    assert isinstance(found, Excess)
    assert "compared with too much" in found.message


@pytest.mark.parametrize("name", LARGE_PATTERNS)
def test_schema_whose_patterns_are_too_large_is_refused(name: str) -> None:
    found = work_of(LARGE_PATTERNS[name])
    assert isinstance(found, Excess)
    assert "patterns are too large" in found.message


def test_the_largest_pattern_is_named() -> None:
    found = work_of({"allOf": [{"pattern": f"a{{{size}}}"} for size in (1_000, 999_999, 2_000)]})
    assert isinstance(found, Excess)
    assert "'a{999999}'" in found.message


@pytest.mark.parametrize("name", TOO_MUCH)
def test_input_that_may_cost_much_is_not_checked_here(name: str) -> None:
    schema, document = TOO_MUCH[name]
    check = InputCheck(schema)
    assert check.may_take_long(document, len(orjson.dumps(document)))
    assert orjson.loads(check.source) == schema


def test_schema_that_no_input_can_keep_busy_is_not_kept_as_text() -> None:
    assert InputCheck({}).source == b""


def test_unclosed_brackets_are_read_once() -> None:
    """Each of them was looked at from the next as well: as many times as there are, a minute for these."""
    for opened in ("[", r"\p{", "[[]"):
        assert states_of(opened * 100_000) > 0


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        ({"items": {"enum": [f"v{number}" for number in range(30_000)]}}, ["x"] * 100),
        ({"items": {"const": ["x" * 100_000] * 5}}, ["x"] * 1_000),
        ({"items": {"required": [f"p{number}" for number in range(1_000)]}}, [{}] * 100),
        (
            {"items": {"dependentRequired": {"a": [f"p{number}" for number in range(1_000)]}}},
            [{"a": 1}] * 100,
        ),
        ({"allOf": [{"maxLength": number} for number in range(100)]}, "x" * 250_000),
    ],
)
def test_faults_that_carry_much_are_not_all_looked_for(schema: Any, document: Any) -> None:
    assert len(InputCheck(schema).violations(document)) == 1


def test_faults_that_carry_little_are_told() -> None:
    check = InputCheck({"items": {"enum": COUNTRIES}, "required": NAMES})
    assert len(check.violations(["x"] * 50)) == 50
    assert len(check.violations({})) == 50


def test_weights_are_those_of_what_is_compared() -> None:
    assert weight_of({"enum": ["a"] * 1_000, "type": "string", "uniqueItems": False, "minimum": 3}) == 0
    assert weight_of({"enum": ["a", None, True, 1, 1.5]}) == 10 + 3 + 10 + 20
    assert weight_of({"const": {"a": ["x" * 256, 1e-40]}}) == 10 + 10 + 2 + 1_000
    assert weight_of({"minimum": 0.5, "multipleOf": 2}) == 20 + 10
    assert weight_of({"dependencies": {"a": ["b"], "c": {}}, "enum": 3, "dependentRequired": []}) == 2
    assert faults_of({"required": ["a"], "dependencies": {"a": ["b", "c"], "d": {}}, "const": [0] * 80}) == 5


def test_patterns_are_as_large_as_with_their_repetitions_written_out() -> None:
    assert positions_of({"pattern": "a{3}b{2,4}c{2,}", "patternProperties": {"(?:ab){10}": True}}) == 9 + 30
    assert positions_of({"pattern": r"\u{10000}[\]a]{0}a))"}) == 3
    assert positions_of({"pattern": 5, "patternProperties": []}) == 0
    assert states_of(r"\p{L}[a\pN].[^a]") - states_of("") == 2 * 700 + 2 * 10
    assert states_of("a{999999999}" * 3) < 10**10


def test_work_is_counted_at_the_worst_place() -> None:
    schema = {
        "items": {"allOf": [{"enum": [1, 2]}] * 3},
        "properties": {"a": {"pattern": "ab"}},
        "required": ["a", "b"],
    }
    assert work_of(schema) == Work(4, 4 + 3 * 30, 2, 4, has_alternatives=False)
