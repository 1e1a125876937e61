"""How deep bytes are nested is known before anything with a stack looks at them."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct

from services.chassis.grpc import nesting
from services.chassis.grpc.nesting import FIELDS_MAX, LEVELS_MAX, TooDeep, measure, parse
from tests.support.nested import nested_struct, varint, with_tag
from tests.unit.chassis.shop import Shop


@pytest.mark.parametrize(("depth", "levels"), [(1, 3), (33, 99), (34, 102), (64, 192)])
def test_an_object_of_free_json_is_three_levels(depth: int, levels: int) -> None:
    raw = nested_struct(depth)
    assert measure(raw, Struct.DESCRIPTOR) == levels
    parsed = parse(Struct.FromString, raw)
    assert parsed.SerializePartialToString() == raw


def test_nesting_has_an_end_and_a_place(shop: Shop) -> None:
    order = shop.messages.BuyRequest
    deepest = (LEVELS_MAX - 1) // 3
    assert measure(with_tag(3, nested_struct(deepest)), order.DESCRIPTOR) == LEVELS_MAX
    for depth in (deepest + 1, 200_000):
        raw = with_tag(1, b"clog") + varint(2 << 3) + varint(1) + with_tag(3, nested_struct(depth))
        with pytest.raises(TooDeep) as found:
            parse(order.FromString, raw)
        assert found.value.path == "extras"


def test_place_inside_a_list_is_told_by_its_number() -> None:
    from windlass.api.v1.executions_pb2 import BatchStartExecutionsRequest

    item = with_tag(1, b"w") + with_tag(3, nested_struct(2))
    deep = with_tag(1, b"w") + with_tag(3, nested_struct(500))
    with pytest.raises(TooDeep) as found:
        parse(BatchStartExecutionsRequest.FromString, with_tag(1, item) * 3 + with_tag(1, deep))
    assert found.value.path == "requests[3].input"


@pytest.mark.parametrize(
    "end",
    [b"\xff", b"\xff" * 11, b"\x0a\x7f", b"\x0b", b"\x09\x00", b"\x0d\x00", b"\x0a\x02\xff\xfe"],
    ids=["open tag", "endless tag", "length beyond", "group", "short double", "short float", "no text"],
)
def test_bytes_that_are_no_message_are_told_as_such_at_any_depth(shop: Shop, end: bytes) -> None:
    for start in (b"", with_tag(3, nested_struct(50))):
        with pytest.raises(DecodeError):
            parse(shop.messages.BuyRequest.FromString, start + end)


def test_the_parsers_own_limit_is_back_in_force_afterwards() -> None:
    parse(Struct.FromString, nested_struct(50))
    with pytest.raises(DecodeError):
        Struct.FromString(nested_struct(50))


def test_what_can_hold_no_free_json_is_not_measured(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    monkeypatch.setattr(nesting, "measure", lambda raw, descriptor: measured.append(descriptor.name))
    for kind in (shop.messages.BuyResponse, shop.messages.BuyRequest):
        with pytest.raises(DecodeError):
            parse(kind.FromString, b"\x10\x01" * 1_000 + b"\xff")
    assert measured == ["BuyRequest"]


def test_measuring_ends_after_so_many_fields() -> None:
    deep = nested_struct(50)
    parse(Struct.FromString, b"\x10\x01" * (FIELDS_MAX - 1_000) + deep)
    for raw in (b"\x10\x01" * FIELDS_MAX + deep, b"\x0a\x00" * FIELDS_MAX + deep):
        with pytest.raises(DecodeError):
            parse(Struct.FromString, raw)


def test_without_the_parsers_switch_its_own_limit_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    from google._upb import _message

    monkeypatch.delattr(_message, "SetAllowOversizeProtos")
    assert nesting._switch() is None
    monkeypatch.setattr(nesting, "_allow_deep", None)
    assert parse(Struct.FromString, nested_struct(33)).fields
    with pytest.raises(DecodeError):
        parse(Struct.FromString, nested_struct(34))
