"""Schemas of a kilobyte that cost more with each level than anybody can wait for, one for each way to multiply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Step = Callable[[dict[str, Any]], dict[str, Any]]
SELF = {"$ref": "#"}


def levels(step: Step, count: int = 16, last: Any = False) -> dict[str, Any]:
    """Each level leads to the next by a reference, as often as `step` uses it."""
    definitions: dict[str, Any] = {
        f"d{level}": step({"$ref": f"#/$defs/d{level + 1}"}) for level in range(count)
    }
    return {"$defs": {**definitions, f"d{count}": last}, "$ref": "#/$defs/d0"}


MULTIPLYING: dict[str, dict[str, Any]] = {
    "anyOf": levels(lambda then: {"anyOf": [then, then]}),
    "anyOf of 12": levels(lambda then: {"anyOf": [then, then]}, 12),
    "allOf": levels(lambda then: {"allOf": [then, then]}, 30, {}),
    "oneOf": levels(lambda then: {"oneOf": [then, then]}),
    "not": levels(lambda then: {"not": then, "allOf": [then]}),
    "if and then": levels(lambda then: {"if": then, "then": then}, 30, {}),
    "if and else": levels(lambda then: {"if": then, "else": then}),
    "dependentSchemas": levels(lambda then: {"dependentSchemas": {"a": then, "b": then}}),
    "dependencies": levels(lambda then: {"dependencies": {"a": then}, "anyOf": [then]}),
    "reference beside": levels(lambda then: {**then, "anyOf": [then]}),
    "dynamic references": {
        "allOf": [{"$dynamicRef": "#d0"}],
        "$defs": {
            str(level): {
                "$dynamicAnchor": f"d{level}",
                "allOf": [{"$dynamicRef": f"#d{level + 1}"}, {"$recursiveRef": f"#d{level + 1}"}],
            }
            for level in range(20)
        }
        | {"last": {"$dynamicAnchor": "d20"}},
    },
    "members twice": levels(lambda then: {"properties": {"a": then}, "anyOf": [{"properties": {"a": then}}]}),
    "members and patterns": levels(
        lambda then: {"properties": {"a": then}, "patternProperties": {"^a": then}}
    ),
    "overlapping patterns": levels(lambda then: {"patternProperties": {"^a": then, "a$": then}}),
    "others twice": levels(
        lambda then: {"allOf": [{"additionalProperties": then}, {"additionalProperties": then}]}
    ),
    "names": {
        "$defs": levels(lambda then: {"allOf": [then, then]})["$defs"],
        "propertyNames": {"$ref": "#/$defs/d0"},
    },
    "elements twice": levels(lambda then: {"items": then, "contains": then}),
    "first elements twice": levels(lambda then: {"allOf": [{"prefixItems": [then]}, {"items": then}]}),
    "asked again": levels(
        lambda then: {"anyOf": [then], "unevaluatedProperties": {"type": "integer"}}, 8, True
    ),
    "asked again by if": levels(lambda then: {"if": then, "unevaluatedProperties": False}, 8, True),
    "elements asked again": levels(lambda then: {"contains": then, "unevaluatedItems": False}, 8, True),
    "itself": SELF,
    "itself in allOf": {"allOf": [SELF]},
    "two that are each other": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    "two ways back by one member": {"properties": {"a": {"anyOf": [SELF, SELF]}}},
    "two ways back by any member": {"additionalProperties": {"allOf": [SELF, SELF]}},
    "two ways back by an element": {"items": SELF, "contains": SELF},
    "two ways back by names that meet": {
        "allOf": [{"properties": {"a": SELF}}, {"additionalProperties": SELF}],
    },
    "older items beside prefixItems": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "allOf": [{"prefixItems": [True], "items": SELF}, {"items": [SELF]}],
    },
    "duplicate anchors": {
        "$defs": {"a": {"$anchor": "x", "$ref": "#"}, "b": {"$anchor": "x", "$ref": "#"}},
        "properties": {"a": {"$ref": "#x"}},
    },
}
