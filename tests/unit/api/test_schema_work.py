"""How much one value of an input can cost: what multiplies is refused, what people write is not."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from services.api.app.schema_reader import (
    EVALUATIONS_TOLD_MAX,
    VIOLATIONS_MAX,
    InputCheck,
    fault_of_stranger,
)
from services.api.core.schema_work import EVALUATIONS_MAX, Excess, Work, work_of
from tests.support.schemas import MULTIPLYING, SELF, levels
from windlass.definition.input_schemas import SchemaFault

NAMED = {"type": "string", "minLength": 1}


def recursive(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", **keywords}


def alternatives(count: int, keyword: str = "oneOf") -> dict[str, Any]:
    variants = [
        {"properties": {"kind": {"const": f"k{number}"}, **{f"p{number}_{at}": NAMED for at in range(20)}}}
        for number in range(count)
    ]
    return {keyword: [{**variant, "additionalProperties": False} for variant in variants]}


STRINGS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "default": []}
SCHEMAS = {"type": "object", "additionalProperties": SELF, "default": {}}
# What draft 7 says of schemas, but for some of its plain members.
SCHEMA_OF_SCHEMAS: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$id": "http://json-schema.org/draft-07/schema#",
    "definitions": {
        "schemaArray": {"type": "array", "minItems": 1, "items": SELF},
        "count": {"type": "integer", "minimum": 0},
        "countDefault0": {"allOf": [{"$ref": "#/definitions/count"}, {"default": 0}]},
        "stringArray": STRINGS,
    },
    "type": ["object", "boolean"],
    "properties": {
        "$id": {"type": "string", "format": "uri-reference"},
        "$ref": {"type": "string", "format": "uri-reference"},
        "default": True,
        "minLength": {"$ref": "#/definitions/countDefault0"},
        "additionalItems": SELF,
        "items": {"anyOf": [SELF, {"$ref": "#/definitions/schemaArray"}], "default": True},
        "contains": SELF,
        "required": {"$ref": "#/definitions/stringArray"},
        "additionalProperties": SELF,
        "definitions": SCHEMAS,
        "properties": SCHEMAS,
        "patternProperties": {**SCHEMAS, "propertyNames": {"format": "regex"}},
        "dependencies": {
            "type": "object",
            "additionalProperties": {"anyOf": [SELF, {"$ref": "#/definitions/stringArray"}]},
        },
        "propertyNames": SELF,
        **dict.fromkeys(("if", "then", "else", "not"), SELF),
        **{key: {"$ref": "#/definitions/schemaArray"} for key in ("allOf", "anyOf", "oneOf")},
    },
    "default": True,
}

ORDINARY: dict[str, Any] = {
    "schema of schemas": SCHEMA_OF_SCHEMAS,
    "anything": True,
    "nothing": False,
    "empty": {},
    "nested": levels(lambda then: {"properties": {"a": then, "b": then}}, 40, {"type": "integer"}),
    "tree": recursive(properties={"children": {"type": "array", "items": SELF}}),
    "binary tree": recursive(properties={"left": SELF, "right": SELF}),
    "two lists of itself": recursive(properties={"before": {"items": SELF}, "after": {"items": SELF}}),
    "map of itself": recursive(additionalProperties=SELF, properties={"name": NAMED}),
    "map by pattern": recursive(patternProperties={"^x-": SELF}, additionalProperties=False),
    "closed tree": recursive(properties={"left": SELF, "right": SELF}, unevaluatedProperties=False),
    "list of itself": {"anyOf": [{"type": "integer"}, {"type": "array", "items": SELF}]},
    "linked list": recursive(properties={"next": {"anyOf": [{"type": "null"}, SELF]}}),
    "tree by anchor": {"$anchor": "node", "properties": {"child": {"$ref": "#node"}}},
    "tree by dynamic anchor": {"$dynamicAnchor": "node", "properties": {"child": {"$dynamicRef": "#node"}}},
    "tree with an address": {
        "$id": "https://example.org/t",
        "properties": {"a": {"$ref": "https://example.org/t#"}},
    },
    "tree with contains": {"contains": SELF, "unevaluatedItems": {"type": "integer"}} | {"contains": NAMED},
    "tuple": {"prefixItems": [NAMED, SELF], "items": {"type": "integer"}},
    "names": {"propertyNames": {"pattern": "^[a-z]+$"}, "minProperties": 1},
    "enum of 5,000": {"enum": [f"value {number}" for number in range(5_000)]},
    "200 properties": {
        "properties": {f"p{number}": {"$ref": "#/$defs/n"} for number in range(200)},
        "$defs": {"n": NAMED},
    },
    "allOf of 20": {
        "allOf": [{"$ref": f"#/$defs/d{number}"} for number in range(20)],
        "$defs": {f"d{number}": {"properties": {f"p{number}": NAMED}} for number in range(20)},
    },
    "300 alternatives": alternatives(300),
    "conditions": {
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": number}}},
                "then": {"required": [f"p{number}"]},
                "else": True,
            }
            for number in range(50)
        ]
    },
    "dependencies": {
        "dependentSchemas": {"card": {"required": ["address"]}},
        "properties": {"card": NAMED, "address": NAMED},
    },
    "draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"n/m": {"$id": "#named", "type": "string"}},
        "dependencies": {"a": ["b"], "b": {"required": ["c"]}},
        "properties": {"a": {"$ref": "#named"}, "b": {"$ref": "#/definitions/n~1m"}},
        "items": [{"$ref": "#named"}, {"$ref": "#/items/0"}],
        "additionalItems": {"type": "integer"},
    },
    "draft 4": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "id": "http://example.org/own",
        "properties": {"id": {"type": "string"}},
    },
    "a property called $ref": {"properties": {"$ref": {"type": "string"}, "$id": NAMED}},
}

NOT_FOLLOWED: dict[str, tuple[dict[str, Any], str]] = {
    "outside": ({"$ref": "http://127.0.0.1:1/x"}, "leads nowhere"),
    "own drafts": ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "leads nowhere"),
    "no member": ({"$ref": "#/$defs/a"}, "leads nowhere"),
    "no element": ({"allOf": [{"$ref": "#/allOf/01"}]}, "leads nowhere"),
    "no anchor": ({"$ref": "#a"}, "leads nowhere"),
    "base below": ({"$defs": {"a": {"$id": "b", "$ref": "#"}}}, "below the top"),
    "empty base below": ({"$defs": {"a": {"$id": "#"}}}, "below the top"),
    "draft 4 below": (
        {"$defs": {"a": {"$schema": "http://json-schema.org/draft-04/schema#", "id": "b"}}},
        "below the top",
    ),
    "base below in draft 4": (
        {"$schema": "http://json-schema.org/draft-04/schema#", "definitions": {"a": {"id": "b"}}},
        "below the top",
    ),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_schema_is_taken(name: str) -> None:
    assert isinstance(work_of(ORDINARY[name]), Work)
    assert fault_of_stranger(ORDINARY[name]) is None


@pytest.mark.parametrize("name", MULTIPLYING)
def test_schema_that_multiplies_its_work_is_refused(name: str) -> None:
    found = work_of(MULTIPLYING[name])
    assert isinstance(found, Excess)
    assert f"more than {EVALUATIONS_MAX} times" in found.message
    assert fault_of_stranger(MULTIPLYING[name]) == found.message


@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_reference_that_cannot_be_followed_is_refused(name: str) -> None:
    schema, message = NOT_FOLLOWED[name]
    found = work_of(schema)
    assert isinstance(found, Excess)
    assert message in found.message


@pytest.mark.parametrize(
    "schema",
    [{"$ref": 5, "allOf": 3, "properties": [], "items": 3, "dependencies": 1, "anyOf": ["x"]}, [], 3, None],
)
def test_what_is_no_schema_is_left_to_the_library(schema: Any) -> None:
    assert isinstance(work_of(schema), Work)


def test_fault_names_the_value_and_the_subschema() -> None:
    doubled = levels(lambda then: {"anyOf": [then, then]})
    found = work_of({"properties": {"list": {"items": {"$ref": "#/$defs/d0"}}}, "$defs": doubled["$defs"]})
    assert isinstance(found, Excess)
    assert "(input.list[*])" in found.message
    assert "#/$defs/d15" in found.message


class Unwritable(list[Any]):
    """Stands for what is large: as text it would be written anew for each subschema."""

    def __str__(self) -> str:
        raise AssertionError("written as text")


@pytest.mark.parametrize("draft", ["$schema", "$id"])
def test_head_that_is_no_text_is_not_written_as_one(draft: str) -> None:
    schema = {draft: Unwritable(), "$defs": {"a": {"id": "b"}}, "$ref": "#/$defs/a"}
    assert isinstance(work_of(schema), Work)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"unevaluatedItems": False, "contains": True}] * 999},
        {"allOf": [True] * EVALUATIONS_MAX},
        {"items": {"anyOf": [True] * EVALUATIONS_MAX}, "type": "array"},
    ],
)
def test_value_that_is_looked_at_by_truths_alone_is_refused(schema: Any) -> None:
    found = work_of(schema)
    assert isinstance(found, Excess)
    assert f"more than {EVALUATIONS_MAX} times" in found.message


def chain(name: str, count: int, last: dict[str, Any]) -> dict[str, Any]:
    """A member in a member in a member …"""
    return levels(lambda then: {"properties": {name: then}}, count, last)


SPACIOUS: dict[str, dict[str, Any]] = {
    "each pattern for each name": {
        "properties": {f"p{number}": {} for number in range(700)},
        "patternProperties": {f"^{number}": {"minLength": number} for number in range(700)},
    },
    "what waits to be looked at": {"allOf": [SELF] * 1_000},
    "one name of many": {
        "allOf": [{"$dynamicRef": "#a"}] * 1_000,
        "$defs": {str(number): {"$dynamicAnchor": "a", "allOf": [SELF]} for number in range(1_000)},
    },
    "long places": chain("x" * 100, 50, {"properties": {f"p{number}": {} for number in range(5_000)}}),
    "long pointers": {
        "allOf": [{"$ref": "#/$defs/a"}] * (EVALUATIONS_MAX // 2),
        "$defs": {"a": {}},
        "x" * 20_000: {f"p{number}": {} for number in range(1_000)},
    },
}


@pytest.mark.parametrize("name", SPACIOUS)
def test_walk_holds_little_at_once(name: str) -> None:
    tracemalloc.start()
    try:
        work_of(SPACIOUS[name])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8_000_000


def test_subschemas_that_meet_in_too_many_ways_are_refused() -> None:
    """No value is checked often, but each path through the input has another set of them to meet."""
    branches = [
        {
            "properties": {
                f"p{name}": {
                    "allOf": [{"$ref": f"#/allOf/{at * name % 30}"}, {"$ref": f"#/allOf/{(at + name) % 30}"}]
                }
                for name in range(30)
            }
        }
        for at in range(30)
    ]
    found = work_of({"allOf": branches})
    assert isinstance(found, Excess)
    assert "too many combinations" in found.message


def test_work_is_that_of_the_worst_value() -> None:
    schema = {
        "properties": {"a": {"allOf": [True, {"$ref": "#/$defs/b"}, {}]}},
        "$defs": {"b": {"not": False}},
    }
    assert work_of(schema) == Work(6, 6, 0, 6, has_alternatives=False)
    assert work_of({"oneOf": [True, False]}) == Work(3, 3, 0, 3, has_alternatives=True)


def test_many_faults_of_a_small_input_are_told() -> None:
    check = InputCheck(
        {"properties": {"list": {"items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}}
    )
    assert len(check.violations({"list": ["x"] * 10})) == 10


def test_large_input_is_told_its_first_fault() -> None:
    check = InputCheck({"properties": {"list": {"items": {"type": "integer"}}}})
    (violation,) = check.violations({"list": [1, "x"] * EVALUATIONS_TOLD_MAX})
    assert (violation.field, violation.reason) == ("input.list[1]", "TYPE")


def test_input_that_is_one_of_many_is_told_its_first_fault_sooner() -> None:
    check = InputCheck({"properties": {"list": {"items": {"type": "integer"}}}})
    assert len(check.violations({"list": ["x"] * 300})) == VIOLATIONS_MAX
    assert len(check.violations({"list": ["x"] * 300}, 2)) == 1
    assert len(check.violations({"list": ["x"] * 10}, 2)) == 2


def test_large_input_is_not_held_against_every_alternative() -> None:
    """Each branch would bring the faults of all elements under each of its own branches."""
    rows = {"items": {"anyOf": [{"items": {"type": "integer"}}] * 6}}
    check = InputCheck({"properties": {"table": {"anyOf": [rows] * 6}}})
    (violation,) = check.violations({"table": [["x"] * 50] * 50})
    assert (violation.field, violation.reason) == ("input", "SCHEMA")


def test_stored_schema_that_multiplies_is_not_compiled() -> None:
    with pytest.raises(SchemaFault, match="more than"):
        InputCheck(MULTIPLYING["anyOf"])
