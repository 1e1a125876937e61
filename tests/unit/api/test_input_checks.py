"""Plain inputs are checked in the process that serves everybody, all others in a child."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from services.api.app.checking.children import Checkers
from services.api.app.checking.engine import Misfit, misfits
from services.api.app.startables import InputCheck
from services.api.core.plain_schemas import PRODUCT_MAX, SCHEMA_BYTES_MAX, is_plain
from services.chassis.grpc.errors import Violation
from windlass.definition.input_schemas import SchemaFault, compiled

ORDER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "title": "An order",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "pattern": {"type": "string", "maxLength": 40},
        "state": {"enum": ["open", "paid"]},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        "kind": {"const": "order"},
    },
    "additionalProperties": False,
}
NOT_PLAIN: tuple[Any, ...] = (
    {"$ref": "#/$defs/a", "$defs": {"a": {}}},
    {"$id": "https://example.org/a"},
    {"pattern": "^a"},
    {"patternProperties": {"^a": True}},
    {"properties": {"a": {"allOf": [{}]}}},
    {"items": {"not": {}}},
    {"items": [{}]},
    {"additionalProperties": {"uniqueItems": True}},
    {"enum": [1, 2]},
    {"const": 1e300},
    {"const": ["a"]},
    {"multipleOf": 0.1},
    {"format": "email"},
    {"properties": []},
    3,
    None,
)


class Recorder(Checkers):
    """A checker that records its requests, and finds the faults that a test gives it."""

    def __init__(self) -> None:
        super().__init__(children=1)
        self.asked: list[tuple[str, Any, Any]] = []

    async def violations(self, workspace: str, schema: bytes, document: bytes, most: int) -> Sequence[Violation]:
        self.asked.append((workspace, orjson.loads(schema), orjson.loads(document)))
        return [Violation("input", "TYPE", "told by a child")]


async def violations(schema: Any, document: Any) -> tuple[Recorder, Sequence[Violation]]:
    checker = Recorder()
    return checker, await InputCheck(schema).violations(checker, "team", document, orjson.dumps(document))


def test_schema_that_looks_at_each_value_once_is_plain() -> None:
    assert all(map(is_plain, (ORDER, True, False, {})))


@pytest.mark.parametrize("schema", NOT_PLAIN)
def test_schema_that_may_do_more_is_not_plain(schema: Any) -> None:
    assert not is_plain(schema)


async def test_plain_input_that_fits_asks_no_child() -> None:
    checker, found = await violations(ORDER, {"id": 1, "lines": [{"sku": "a"}] * 100})
    assert (checker.asked, found) == ([], ())


async def test_child_finds_the_words_for_what_does_not_fit() -> None:
    checker, found = await violations(ORDER, {"id": "x"})
    assert checker.asked == [("team", ORDER, {"id": "x"})]
    assert [each.message for each in found] == ["told by a child"]


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        (ORDER, {"id": 1, "lines": [{"sku": "x"}] * (PRODUCT_MAX // len(orjson.dumps(ORDER)) // 10)}),
        ({"description": "x" * SCHEMA_BYTES_MAX}, {}),
        ({"properties": {"id": {"pattern": "^a$"}}}, {"id": "a"}),
    ],
)
async def test_all_else_is_checked_by_a_child(schema: Any, document: Any) -> None:
    checker, _ = await violations(schema, document)
    assert checker.asked == [("team", schema, document)]


def test_misfits_name_their_place_and_the_keyword() -> None:
    validator = compiled({"properties": {"list": {"items": {"minLength": 2}}}})
    document = {"list": ["ab", "a", "b"]}
    first = Misfit("input.list[1]", "MIN_LENGTH", '"a" is shorter than 2 characters')
    assert misfits(validator, document, 1) == [first]
    assert [each.path for each in misfits(validator, document, 50)] == ["input.list[1]", "input.list[2]"]
    assert misfits(validator, {"list": []}, 1) == []


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (3, "a JSON Schema is an object"),
        ({"type": "nope"}, "nope"),
        ({"pattern": "("}, "regex"),
        ({"$ref": "http://127.0.0.1:1/x"}, "points outside itself"),
        ({"$ref": "file:///etc/passwd"}, "points outside itself"),
    ],
)
def test_author_is_told_why_it_is_no_schema(schema: Any, message: str) -> None:
    with pytest.raises(SchemaFault, match=message):
        compiled(schema)
