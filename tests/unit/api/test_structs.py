"""Struct becomes Python values and back: integers stay integers, and only JSON gets through."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from services.api.rpc.structs import StructTooLarge, document_of, fill, to_dict
from services.chassis.grpc.errors import Refusal
from tests.support.probe import INLINE_TURNS, turns_during
from windlass.definition.limits import FAULTS_MAX

BYTES_MAX = 1_000_000
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=8), json_values, max_size=5))
def test_document_survives_the_way_through_a_struct(document: dict[str, Any]) -> None:
    struct = struct_pb2.Struct()
    fill(struct, orjson.dumps(document))
    assert document_of(struct, BYTES_MAX) == document


async def test_whole_numbers_become_integers() -> None:
    struct = struct_pb2.Struct()
    struct.update({"whole": 3.0, "part": 3.5, "large": 2.0**60, "zero": -0.0})
    back = await to_dict(struct, "input", BYTES_MAX)
    assert {key: type(value) for key, value in back.items()} == {
        "whole": int,
        "part": float,
        "large": float,
        "zero": int,
    }


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
async def test_value_that_is_no_number_is_refused_by_field(number: float) -> None:
    struct = struct_pb2.Struct()
    struct.fields["a"].list_value.values.add().number_value = number
    with pytest.raises(Refusal) as refused:
        await to_dict(struct, "definition", BYTES_MAX)
    assert refused.value.reason == "INVALID_REQUEST"
    assert [(each.field, each.reason) for each in refused.value.violations] == [("definition.a[0]", "NOT_A_NUMBER")]
    (kept,) = document_of(struct, BYTES_MAX)["a"]
    assert str(kept) == str(number)


async def test_no_more_faults_are_told_than_anybody_reads() -> None:
    struct = struct_pb2.Struct()
    struct.update({"a": [float("nan")] * 3 * FAULTS_MAX})
    with pytest.raises(Refusal) as refused:
        await to_dict(struct, "input", BYTES_MAX)
    assert len(refused.value.violations) == FAULTS_MAX
    assert refused.value.violations[-1].field == f"input.a[{FAULTS_MAX - 1}]"


def nested(depth: int, *, in_lists: bool = False) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    value = struct.fields["a"]
    for _ in range(depth - 1):
        value = value.list_value.values.add() if in_lists else value.struct_value.fields["a"]
    value.bool_value = True
    return struct


@pytest.mark.parametrize("in_lists", [False, True])
async def test_json_of_30_levels_is_taken_and_of_31_refused(in_lists: bool) -> None:
    await to_dict(nested(30, in_lists=in_lists), "input", BYTES_MAX)
    for depth in (31, 300):
        with pytest.raises(Refusal) as refused:
            await to_dict(nested(depth, in_lists=in_lists), "input", BYTES_MAX)
        (violation,) = refused.value.violations
        assert (violation.field[:9], violation.reason) == ("input.a[0" if in_lists else "input.a.a", "TOO_DEEP")


async def test_value_without_a_kind_is_null() -> None:
    struct = struct_pb2.Struct()
    struct.fields["a"].SetInParent()
    assert await to_dict(struct, "input", BYTES_MAX) == {"a": None}


def test_empty_object_is_present_and_no_content_is_absent() -> None:
    struct = struct_pb2.Value()
    fill(struct.struct_value, b"{}")
    assert struct.WhichOneof("kind") == "struct_value"
    empty = struct_pb2.Value()
    fill(empty.struct_value, b"")
    assert empty.WhichOneof("kind") is None


async def test_result_that_is_no_object_is_put_into_one() -> None:
    struct = struct_pb2.Struct()
    fill(struct, b"[1]")
    assert await to_dict(struct, "output", BYTES_MAX) == {"value": [1]}


@pytest.mark.parametrize("value", [[0] * 10, {str(number): 0 for number in range(10)}, [[[0] * 8]]])
async def test_more_values_than_its_json_has_bytes_for_are_refused(value: Any) -> None:
    struct = struct_pb2.Struct()
    struct.update({"a": value})
    size = len(orjson.dumps({"a": value}))
    assert document_of(struct, size) == {"a": value}
    with pytest.raises(StructTooLarge):
        document_of(struct, size // 2 - 1)
    with pytest.raises(Refusal) as refused:
        await to_dict(struct, "input", size // 2 - 1)
    assert [(each.field, each.reason) for each in refused.value.violations] == [("input", "TOO_LARGE")]


@given(st.dictionaries(st.text(max_size=8), json_values, max_size=5))
def test_document_that_fits_its_bytes_is_never_surely_over(document: dict[str, Any]) -> None:
    struct = struct_pb2.Struct()
    content = orjson.dumps(document)
    fill(struct, content)
    assert document_of(struct, len(content)) == document


@pytest.mark.parametrize(
    "value",
    [
        [-1.5] * 50_000,
        {f"{number}": None for number in range(20_000)},
        [[[[]]]] * 15_000,
        [0] * 50_000 + [float("nan")],
    ],
)
async def test_others_are_served_while_a_large_struct_is_read(value: Any) -> None:
    struct = struct_pb2.Struct()
    struct.update({"a": value})

    async def read() -> Any:
        try:
            return (await to_dict(struct, "input", BYTES_MAX))["a"]
        except Refusal as refusal:
            return [each.reason for each in refusal.violations]

    found, turns = await turns_during(read())
    assert found in (value, ["NOT_A_NUMBER"])
    assert turns > INLINE_TURNS


async def test_small_struct_is_read_at_once() -> None:
    struct = struct_pb2.Struct()
    struct.update({"a": list(range(1_000)), "text": "x" * 200_000})
    _, turns = await turns_during(to_dict(struct, "input", BYTES_MAX))
    assert turns == 1
