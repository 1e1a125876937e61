"""Filters: what is understood, what is refused, where and in which words, and which executions fit."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.core.filter_text import CHARACTERS_MAX, CONDITIONS_MAX, DEPTH_MAX, FilterFault, parse
from services.api.core.filters import (
    TEXTS,
    AllOf,
    AnyOf,
    Condition,
    Filter,
    Not,
    Operator,
    Pattern,
    Present,
    Row,
    asks_of,
    kind_of,
    matches,
)
from services.api.peers.conditions import conditions_of
from tests.support.filters import flat, trees, written
from windlass.coordinator.v1.reads_pb2 import Condition as Wire

A, B, C = (Condition("workflow", Operator.EQUAL, name) for name in "abc")


def parsed(text: str) -> list[Filter]:
    found = parse(text)
    assert not isinstance(found, FilterFault), found.message
    return list(found)


def test_whole_example_of_the_contract() -> None:
    assert parsed("") == parsed(" \n") == []
    text = 'state = FAILED AND workflow = "intake" AND labels.region = "eu" AND create_time > "2026-11-01T00:00:00Z"'
    assert parsed(text) == [
        Condition("state", Operator.EQUAL, "FAILED"),
        Condition("workflow", Operator.EQUAL, "intake"),
        Condition("labels.region", Operator.EQUAL, "eu"),
        Condition("create_time", Operator.GREATER, "2026-11-01T00:00:00Z"),
    ]


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("state=COMPLETED", Condition("state", Operator.EQUAL, "SUCCESS")),
        ("state:FAILED", Condition("state", Operator.EQUAL, "FAILED")),
        ("priority>=3", Condition("priority", Operator.GREATER_EQUAL, "3")),
        ("priority > -1", Condition("priority", Operator.GREATER, "-1")),
        ("workflow != 'a b'", Condition("workflow", Operator.NOT_EQUAL, "a b")),
        ("workflow < m", Condition("workflow", Operator.LESS, "m")),
        (r'labels.note = "say \"hi\""', Condition("labels.note", Operator.EQUAL, 'say "hi"')),
        (r"labels.path = a\b", Condition("labels.path", Operator.EQUAL, r"a\b")),
        (r'labels.note = "5 \* 3"', Condition("labels.note", Operator.EQUAL, "5 * 3")),
        ("trigger.type = MANUAL", Condition("trigger.type", Operator.EQUAL, "MANUAL")),
        ('labels.a = ""', Condition("labels.a", Operator.EQUAL, "")),
        ("labels.a:b:c", Condition("labels.a", Operator.EQUAL, "b:c")),
        ('labels."an odd: (key)" = x', Condition("labels.an odd: (key)", Operator.EQUAL, "x")),
        ('labels."say \\"hi\\"" = x', Condition('labels.say "hi"', Operator.EQUAL, "x")),
        ("start_time < 2026-11-01T00:00:00Z", Condition("start_time", Operator.LESS, "2026-11-01T00:00:00Z")),
        ("labels:region", Present("labels.region")),
        ('labels:"an odd key"', Present("labels.an odd key")),
        ("error:type", Present("error.type")),
        ("end_time:*", Present("end_time")),
        ("state:*", Present("state")),
        ("labels.region = *", Present("labels.region")),
        ('workflow = "in*"', Pattern("workflow", "in", is_start_open=False, is_end_open=True)),
        ("workflow:*take", Pattern("workflow", "take", is_start_open=True, is_end_open=False)),
        (r'error.message:"*\**"', Pattern("error.message", "*", is_start_open=True, is_end_open=True)),
        ("labels.a != x*", Not(Pattern("labels.a", "x", is_start_open=False, is_end_open=True))),
        ('labels.a != "*"', Not(Present("labels.a"))),
    ],
)
def test_comparison_is_understood(text: str, condition: Filter) -> None:
    assert parsed(text) == [condition]


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("workflow=a workflow=b", [A, B]),
        ("workflow=a AND workflow=b OR workflow=c", [A, AnyOf((B, C))]),
        ("workflow=a OR workflow=b AND workflow=c", [AnyOf((A, B)), C]),
        ("workflow=a OR workflow=b workflow=c", [AnyOf((A, B)), C]),
        ("(workflow=a AND workflow=b) OR workflow=c", [AnyOf((AllOf((A, B)), C))]),
        ("(workflow=a workflow=b) AND workflow=c", [A, B, C]),
        ("((workflow=a))", [A]),
        ("NOT workflow=a OR workflow=b", [AnyOf((Not(A), B))]),
        ("NOT(workflow=a OR workflow=b)", [Not(AnyOf((A, B)))]),
        ("-workflow=a", [Not(A)]),
        ("-(workflow=a AND workflow=b)", [Not(AllOf((A, B)))]),
        ("(workflow=a)(workflow=b)", [A, B]),
        ("labels.AND = x", [Condition("labels.AND", Operator.EQUAL, "x")]),
        ("labels.a = 'OR'", [Condition("labels.a", Operator.EQUAL, "OR")]),
    ],
)
def test_joined_comparisons_are_understood(text: str, tree: list[Filter]) -> None:
    assert parsed(text) == tree


@pytest.mark.parametrize(
    ("text", "place", "complaint"),
    [
        ("state", 1, "'state' must be followed"),
        ("  state", 3, "'state' must be followed"),
        ("state =", 8, "a value is missing after '='"),
        ("state = AND workflow = a", 9, "a value is missing after '='"),
        ("= FAILED", 1, "missing before '='"),
        ("'intake'", 1, "missing before \"'intake'\""),
        ("state = FAILED AND", 19, "missing at the end"),
        ("state = FAILED OR", 18, "missing at the end"),
        ("AND state = FAILED", 1, "missing before 'AND'"),
        ("state = FAILED AND OR workflow = a", 20, "missing before 'OR'"),
        ("state = FAILED and workflow = a", 16, "'and' must be written in capitals"),
        ("NOT NOT state = FAILED", 5, "missing before 'NOT'"),
        ("--state = FAILED", 2, "missing before '-state'"),
        ("()", 2, "missing before ')'"),
        ("(state = FAILED", 1, "this '(' has no ')'"),
        ("state = FAILED)", 15, "this ')' has no '('"),
        ("state = (FAILED OR SUCCESS)", 9, "takes one value"),
        ("create_time > now()", 15, "no functions"),
        ("has(error)", 1, "no functions"),
        ('workflow = "open', 12, "this quote has no end"),
        ("workflow = 'open", 12, "this quote has no end"),
        ("state ! FAILED", 1, "must be followed"),
        ("state = BROKEN", 9, "'BROKEN' is not a state"),
        ("state = FAIL*", 9, "'FAIL*' is not a state"),
        ("trigger.type = STATE", 16, "'STATE' is not a trigger.type"),
        ("state > FAILED", 1, "only be compared by =, != and :"),
        ("priority = high", 12, "must be a number"),
        ("priority = *", 12, "must be a number, not '*'"),
        ("version = 12345678901", 11, "must be a number"),
        ("create_time > yesterday", 15, "must be a time"),
        ('create_time > "2026-11-01T00:00:00"', 15, "must be a time"),
        ("workflow = a*b", 12, "at the beginning or the end"),
        ("workflow < a*", 12, "only with =, != and :"),
        ("input = 3", 1, "is not a field"),
        ("input:x", 1, "is not a field"),
        ("labels. = 3", 1, "is not a field"),
        ("labels = 3", 1, "is not a field"),
        ("labels:*", 1, "is not a field"),
        ('labels:""', 1, "is not a field"),
    ],
)
def test_rest_is_refused_by_name_and_place(text: str, place: int, complaint: str) -> None:
    fault = parse(text)
    assert isinstance(fault, FilterFault)
    assert fault.message.startswith(f"at character {place}: ")
    assert complaint in fault.message


def test_filters_have_bounds() -> None:
    def told(text: str) -> str:
        fault = parse(text)
        return fault.message if isinstance(fault, FilterFault) else ""

    assert told(" AND ".join(["priority = 1"] * CONDITIONS_MAX)) == ""
    assert f"more than {CONDITIONS_MAX} comparisons" in told("priority = 1 " * (CONDITIONS_MAX + 1))
    deep = "NOT (" * DEPTH_MAX + "priority = 1" + ")" * DEPTH_MAX
    assert told(deep) == ""
    assert f"more than {DEPTH_MAX} parentheses" in told(f"({deep})")
    assert told("(" * CHARACTERS_MAX).startswith(f"at character {DEPTH_MAX + 1}: ")
    assert told(" " * CHARACTERS_MAX) == ""
    assert f"at most {CHARACTERS_MAX}" in told(" " * (CHARACTERS_MAX + 1))


@given(st.text(alphabet=st.sampled_from("state=<>!:()'\"\\ ANDORTFILE.lbx0-*"), max_size=60))
def test_any_text_is_a_filter_or_a_fault(text: str) -> None:
    found = parse(text)
    assert found.message if isinstance(found, FilterFault) else isinstance(found, tuple)


@given(trees())
def test_whatever_is_written_is_read_as_it_was_meant(tree: Filter) -> None:
    assert tuple(parsed(written(tree))) == flat(tree)


@given(trees())
def test_what_an_earlier_coordinator_does_not_know_has_no_operator(tree: Filter) -> None:
    """It refuses that, and would take an operator for the whole of a condition."""
    for part, sent in zip(flat(tree), conditions_of(flat(tree)), strict=True):
        is_known = isinstance(part, Condition) and not (
            kind_of(part.field) in TEXTS and part.operator not in (Operator.EQUAL, Operator.NOT_EQUAL)
        )
        assert (sent.operator != Wire.OPERATOR_UNSPECIFIED) == is_known
        assert (sent.WhichOneof("form") is None) == is_known


def test_largest_filter_is_within_the_depth_of_messages() -> None:
    level = "(priority = 1 AND priority = 2 OR NOT {})"
    text = "priority = 3"
    for _ in range(DEPTH_MAX):
        text = level.format(text)
    (sent,) = conditions_of([AllOf(tuple(parsed(text)))])
    assert Wire.FromString(sent.SerializeToString()) == sent


def test_fields_that_decide_are_told() -> None:
    filters = parsed("workflow = a AND (labels:x OR NOT (start_time > 2026-11-01T00:00:00Z version = 1))")
    assert all(asks_of(filters, field) for field in ("workflow", "labels.x", "start_time", "version"))
    assert not asks_of(filters, "end_time")


ROW: Row = {
    "state": "PENDING",
    "workflow": "intake",
    "version": 2,
    "priority": 3,
    "create_time": datetime(2026, 11, 18, 12, tzinfo=UTC),
    "labels.region": "eu",
    "labels.note": "",
}


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", True),
        ("state = PENDING", True),
        ("state = PENDING AND version = 3", False),
        ("state != PENDING", False),
        ("state = RUNNING OR state = PENDING", True),
        ("state = RUNNING OR state = FAILED", False),
        ("NOT state = RUNNING", True),
        ("-(state = PENDING AND version = 2)", False),
        ("(state = PENDING AND version = 3) OR version = 2", True),
        ("version > 1 AND version < 3 AND version >= 2 AND version <= 2", True),
        ("version < 2", False),
        ("workflow > in AND workflow < j", True),
        ('create_time > "2026-11-18T14:30:00+03:00"', True),
        ('create_time >= "2026-11-18T12:00:01Z"', False),
        ("labels.region = eu", True),
        ("labels.region:e*", True),
        ("labels.region = *u", True),
        ("labels.region = *x*", False),
        ("workflow = *tak*", True),
        ("workflow = int", False),
        ("labels:region AND labels:note AND NOT labels:tier", True),
        ("labels.note = ''", True),
        ("labels.tier = ''", False),
        ("state:* AND version:* AND NOT end_time:*", True),
    ],
)
def test_execution_fits_or_not(text: str, fits: bool) -> None:
    assert matches(parsed(text), ROW) is fits


@pytest.mark.parametrize(
    "absent", ["labels.tier {} gold", "error.type {} TIMEOUT", 'end_time {} "2026-11-18T12:00:01Z"']
)
def test_what_is_absent_fits_nothing_but_what_says_no(absent: str) -> None:
    for comparator in ("=", "<", "<=", ">", ">="):
        assert not matches(parsed(absent.format(comparator)), ROW)
        assert matches(parsed(f"NOT {absent.format(comparator)}"), ROW)
    assert matches(parsed(absent.format("!=")), ROW)
    assert not matches(parsed("labels.tier = g*"), ROW)
    assert matches(parsed("labels.tier != g* AND NOT error.message:*"), ROW)
    assert not matches(parsed(f"NOT {absent.format('!=')}"), ROW)


def test_text_of_an_execution_is_empty_where_it_has_none() -> None:
    child: Row = {**ROW, "parent_execution_id": "p"}
    for text, fits in (('parent_execution_id = ""', ROW), ('parent_execution_id != ""', child)):
        assert [matches(parsed(text), row) for row in (ROW, child)] == [row is fits for row in (ROW, child)]
