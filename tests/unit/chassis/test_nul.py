"""A NUL is found wherever text can be, and is named by its path."""

from __future__ import annotations

import tracemalloc

import pytest
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from services.chassis.grpc.errors import Refusal
from services.chassis.grpc.nul import KEY_CHARACTERS_MAX, PATH_CHARACTERS_MAX, PATHS_MAX, text_fields
from services.chassis.grpc.validation import refuse_nul
from tests.unit.chassis.shop import Shop
from windlass.coordinator.v1 import sessions_pb2
from windlass.types.v1 import session_pb2


def paths(message: Message) -> list[str]:
    with pytest.raises(Refusal) as refused:
        refuse_nul(message)
    assert {each.reason for each in refused.value.violations} == {"NUL"}
    return [each.field for each in refused.value.violations]


def test_each_place_is_told_by_its_path(shop: Shop) -> None:
    order = shop.messages.BuyRequest(shoe="a\0", pairs=1, notes=["fine", "b\0"])
    order.labels.update({"left": "c\0", "right": "fine"})
    order.extras.update({"a": {"b": [1, {"c": "d\0"}, ["fine", "e\0"]]}, "f": "g\0", "h": None})
    assert sorted(paths(order)) == [
        "extras.a.b[1].c", "extras.a.b[2][1]", "extras.f", "labels['left']", "notes[1]", "shoe",
    ]  # fmt: skip


def test_keys_are_text_too(shop: Shop) -> None:
    order = shop.messages.BuyRequest(shoe="clog")
    order.labels["l\0"] = "fine"
    order.extras.update({"k\0": 1})
    assert sorted(paths(order)) == ["extras.k?", "labels['l?']"]


def test_text_without_any_is_not_refused(shop: Shop) -> None:
    order = shop.messages.BuyRequest(shoe="clog", notes=["fine"], labels={"left": "fine"})
    order.extras.update({"a": [1.0, True, None, "fine", {"b": {}}], "c": "fine"})
    refuse_nul(order)


def test_long_key_above_many_values_costs_no_memory() -> None:
    order = Struct()
    order.fields["k" * 200_000].list_value.extend([*range(8_000), "a\0"])
    tracemalloc.start()
    try:
        found = paths(order)
        assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert found == ["k" * KEY_CHARACTERS_MAX + "[8000]"]


def test_search_ends_after_so_many_paths(shop: Shop) -> None:
    order = shop.messages.BuyRequest(shoe="clog", notes=["a\0"] * 10 * PATHS_MAX)
    assert paths(order) == [f"notes[{index}]" for index in range(PATHS_MAX)]


def test_path_has_an_end() -> None:
    order = here = Struct()
    for _ in range(30):
        here = here.fields["k" * 200].struct_value
    here.update({"end": "a\0"})
    (path,) = paths(order)
    assert len(path) <= PATH_CHARACTERS_MAX
    assert path.startswith("k" * KEY_CHARACTERS_MAX + ".k")


def test_only_fields_that_can_hold_text_are_looked_into() -> None:
    """A runner's reports come in hundreds, and have mostly numbers, times and bytes."""

    def names(of: type[Message]) -> list[str]:
        return [field.name for field in text_fields(of.DESCRIPTOR)]

    assert names(sessions_pb2.RunReport) == ["head", "succeeded", "failed", "released", "target"]
    assert names(sessions_pb2.RunReport.Failed) == ["type", "message"]
    assert names(session_pb2.ReportHead) == ["report_id", "lease_id", "instance_id"]
    assert names(Struct) == ["fields"]
