"""Ids from outside are told apart from texts that only look like ids."""

import pytest

from services.coordinator.core.run_ids import is_execution_id, split_run_id

ID = "01931f3c-7a1b-7c3d-8e4f-1234567890ab"


def test_a_run_id_is_an_execution_id_and_a_number() -> None:
    assert split_run_id(f"{ID}.1") == (ID, 1)
    assert split_run_id(f"{ID}.999999999") == (ID, 999_999_999)


@pytest.mark.parametrize(
    "text", ["", ".", "1", "abc.1", ID, f"{ID}.", f"{ID}.x", f"{ID}.-1", f"{ID}.٣", f"{ID}.1\n", f"{ID}\x00.1",
             f"{ID.upper()}.1", f"{ID}.1000000000", "{" + ID + "}.1", f"{ID.replace('-', '')}.1", f"{ID},{ID}.1"],
)  # fmt: skip
def test_what_no_column_could_be_compared_with_is_no_run_id(text: str) -> None:
    assert split_run_id(text) == ("", 0)


def test_an_execution_id_has_one_form() -> None:
    assert is_execution_id(ID)
    assert not any(map(is_execution_id, ["", ID.upper(), f"{ID} ", f"{ID}.1", ID.replace("-", ""), ID + "\n"]))
