"""Filters: what is understood, what is refused and in which words, and which rows fit."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.core.filters import Condition, FilterFault, Operator, matches, parse


def test_whole_example_of_the_contract() -> None:
    text = 'state = FAILED AND workflow = "intake" AND labels.region = "eu" AND create_time > "2026-11-01T00:00:00Z"'
    assert parse(text) == [
        Condition("state", Operator.EQUAL, "FAILED"),
        Condition("workflow", Operator.EQUAL, "intake"),
        Condition("labels.region", Operator.EQUAL, "eu"),
        Condition("create_time", Operator.GREATER, "2026-11-01T00:00:00Z"),
    ]


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_no_filter_is_no_condition(text: str) -> None:
    assert parse(text) == []


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("state=COMPLETED", Condition("state", Operator.EQUAL, "SUCCESS")),
        ("priority>=3", Condition("priority", Operator.GREATER_EQUAL, "3")),
        ("workflow != 'a b'", Condition("workflow", Operator.NOT_EQUAL, "a b")),
        (r'labels.note = "say \"hi\""', Condition("labels.note", Operator.EQUAL, 'say "hi"')),
        ("trigger.type = MANUAL", Condition("trigger.type", Operator.EQUAL, "MANUAL")),
        ('labels.a = ""', Condition("labels.a", Operator.EQUAL, "")),
    ],
)
def test_comparison_is_understood(text: str, condition: Condition) -> None:
    assert parse(text) == [condition]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("state = FAILED OR state = SUCCESS", "'OR' is not supported"),
        ("NOT state = FAILED", "'NOT' is not supported"),
        ("-state = FAILED", "'-state' is not supported"),
        ("(state = FAILED)", "'(' is not supported"),
        ("state : FAILED", "':' is not supported"),
        ("state", "must be followed"),
        ("state =", "must be followed"),
        ("= FAILED", "'=' is not supported"),
        ("state = FAILED AND", "missing after AND"),
        ("state = FAILED workflow = x", "'workflow' is not supported"),
        ("state = BROKEN", "'BROKEN' is no state"),
        ("state > FAILED", "by = or != only"),
        ("priority = high", "is a number"),
        ("create_time > yesterday", "is a time"),
        ('create_time > "2026-11-01T00:00:00"', "is a time"),
        ("input = 3", "cannot be filtered by"),
        ("labels. = 3", "cannot be filtered by"),
        ('workflow = "open', "cannot be read"),
        (" AND ".join(["priority = 1"] * 33), "at most 32"),
    ],
)
def test_rest_is_refused_by_name(text: str, complaint: str) -> None:
    fault = parse(text)
    assert isinstance(fault, FilterFault)
    assert complaint in fault.message


@given(st.text(alphabet=st.sampled_from("state=<>!:()'\"\\ ANDFILED.lbx0-"), max_size=60))
def test_any_text_is_a_filter_or_a_fault(text: str) -> None:
    parsed = parse(text)
    assert isinstance(parsed, FilterFault) or all(isinstance(each, Condition) for each in parsed)


ROW: dict[str, str | int | datetime] = {
    "state": "PENDING",
    "workflow": "intake",
    "version": 2,
    "priority": 3,
    "create_time": datetime(2026, 11, 18, 12, tzinfo=UTC),
    "labels.region": "eu",
}


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", True),
        ("state = PENDING", True),
        ("state = PENDING AND version = 3", False),
        ("state != PENDING", False),
        ("version > 1 AND version < 3 AND version >= 2 AND version <= 2", True),
        ("version < 2", False),
        ('create_time > "2026-11-18T14:30:00+03:00"', True),
        ('create_time >= "2026-11-18T12:00:01Z"', False),
        ("labels.region = eu", True),
        ("labels.tier = gold", False),
        ("labels.tier != gold", True),
        ("error.type != TIMEOUT", True),
        ('end_time > "2026-11-18T12:00:01Z"', False),
    ],
)
def test_row_fits_or_not(text: str, fits: bool) -> None:
    conditions = parse(text)
    assert not isinstance(conditions, FilterFault)
    assert matches(conditions, ROW) is fits
