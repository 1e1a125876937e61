"""Filters are understood, or refused with the place and the reason, and match the right executions."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.rpc.filter_text import CHARACTERS_MAX, CONDITIONS_MAX, DEPTH_MAX, parse
from services.api.rpc.filters import Fields, hold
from services.chassis.grpc.errors import Refusal
from tests.support.filters import all_of, any_of, compared, flat, negated, pattern, present, trees, written
from windlass.coordinator.v1.reads_pb2 import Condition

A, B, C = (compared("workflow", "=", name) for name in "abc")


def parsed(text: str) -> list[Condition]:
    return list(parse(text).conditions)


def fault(text: str) -> str:
    """The fault of the text; empty if it has none."""
    try:
        parse(text)
    except Refusal as refused:
        (violation,) = refused.violations
        return violation.message if violation[:2] == ("filter", "BAD_FILTER") else ""
    return ""


def test_filter_of_the_contract_is_read_as_its_comparisons() -> None:
    assert parsed("") == parsed(" \n") == []
    text = 'state = FAILED AND workflow = "intake" AND labels.region = "eu" AND create_time > "2026-11-01T00:00:00Z"'
    assert parsed(text) == [
        compared("state", "=", "FAILED"),
        compared("workflow", "=", "intake"),
        compared("labels.region", "=", "eu"),
        compared("create_time", ">", "2026-11-01T00:00:00Z"),
    ]


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("state=COMPLETED", compared("state", "=", "SUCCESS")),
        ("state:FAILED", compared("state", "=", "FAILED")),
        ("priority>=3", compared("priority", ">=", "3")),
        ("priority > -1", compared("priority", ">", "-1")),
        ("workflow != 'a b'", compared("workflow", "!=", "a b")),
        ("workflow < m", compared("workflow", "<", "m")),
        (r'labels.note = "say \"hi\""', compared("labels.note", "=", 'say "hi"')),
        (r"labels.path = a\b", compared("labels.path", "=", r"a\b")),
        (r'labels.note = "5 \* 3"', compared("labels.note", "=", "5 * 3")),
        ("trigger.type = MANUAL", compared("trigger.type", "=", "MANUAL")),
        ('labels.a = ""', compared("labels.a", "=", "")),
        ("labels.a:b:c", compared("labels.a", "=", "b:c")),
        ('labels."an odd: (key)" = x', compared("labels.an odd: (key)", "=", "x")),
        ('labels."say \\"hi\\"" = x', compared('labels.say "hi"', "=", "x")),
        ("start_time < 2026-11-01T00:00:00Z", compared("start_time", "<", "2026-11-01T00:00:00Z")),
        ("labels:region", present("labels.region")),
        ('labels:"an odd key"', present("labels.an odd key")),
        ("error:type", present("error.type")),
        ("end_time:*", present("end_time")),
        ("state:*", present("state")),
        ("labels.region = *", present("labels.region")),
        ('workflow = "in*"', pattern("workflow", "in", "end")),
        ("workflow:*take", pattern("workflow", "take", "start")),
        (r'error.message:"*\**"', pattern("error.message", "*", "start and end")),
        ("labels.a != x*", negated(pattern("labels.a", "x", "end"))),
        ('labels.a != "*"', negated(present("labels.a"))),
    ],
)
def test_comparison_is_understood(text: str, condition: Condition) -> None:
    assert parsed(text) == [condition]


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("workflow=a workflow=b", [A, B]),
        ("workflow=a AND workflow=b OR workflow=c", [A, any_of((B, C))]),
        ("workflow=a OR workflow=b AND workflow=c", [any_of((A, B)), C]),
        ("workflow=a OR workflow=b workflow=c", [any_of((A, B)), C]),
        ("(workflow=a AND workflow=b) OR workflow=c", [any_of((all_of((A, B)), C))]),
        ("(workflow=a workflow=b) AND workflow=c", [A, B, C]),
        ("((workflow=a))", [A]),
        ("NOT workflow=a OR workflow=b", [any_of((negated(A), B))]),
        ("NOT(workflow=a OR workflow=b)", [negated(any_of((A, B)))]),
        ("-workflow=a", [negated(A)]),
        ("-(workflow=a AND workflow=b)", [negated(all_of((A, B)))]),
        ("(workflow=a)(workflow=b)", [A, B]),
        ("labels.AND = x", [compared("labels.AND", "=", "x")]),
        ("labels.a = 'OR'", [compared("labels.a", "=", "OR")]),
    ],
)
def test_joined_comparisons_are_understood(text: str, tree: list[Condition]) -> None:
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
    assert fault(text).startswith(f"at character {place}: ")
    assert complaint in fault(text)


def test_filters_have_bounds() -> None:
    assert fault(" AND ".join(["priority = 1"] * CONDITIONS_MAX)) == ""
    assert f"more than {CONDITIONS_MAX} comparisons" in fault("priority = 1 " * (CONDITIONS_MAX + 1))
    deep = "NOT (" * DEPTH_MAX + "priority = 1" + ")" * DEPTH_MAX
    assert fault(deep) == ""
    assert f"more than {DEPTH_MAX} parentheses" in fault(f"({deep})")
    assert fault("(" * CHARACTERS_MAX).startswith(f"at character {DEPTH_MAX + 1}: ")
    assert fault(" " * CHARACTERS_MAX) == ""
    assert f"at most {CHARACTERS_MAX}" in fault(" " * (CHARACTERS_MAX + 1))


@given(st.text(alphabet=st.sampled_from("state=<>!:()'\"\\ ANDORTFILE.lbx0-*"), max_size=60))
def test_any_text_is_a_filter_or_a_fault(text: str) -> None:
    assert fault(text) or parsed(text) is not None


@given(trees())
def test_written_filter_is_read_as_it_was_meant(tree: Condition) -> None:
    assert parsed(written(tree)) == flat(tree)


@given(trees())
def test_form_has_no_operator(tree: Condition) -> None:
    """A coordinator that does not know the form refuses it. It would take an operator for the whole condition."""
    for sent in parsed(written(tree)):
        assert (sent.WhichOneof("form") is None) == (sent.operator != Condition.OPERATOR_UNSPECIFIED)


def test_largest_filter_is_within_the_depth_of_messages() -> None:
    level = "(priority = 1 AND priority = 2 OR NOT {})"
    text = "priority = 3"
    for _ in range(DEPTH_MAX):
        text = level.format(text)
    sent = all_of(parsed(text))
    assert Condition.FromString(sent.SerializeToString()) == sent


ROW: Fields = {
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
    assert hold(parsed(text), ROW) is fits


@pytest.mark.parametrize(
    "absent", ["labels.tier {} gold", "error.type {} TIMEOUT", 'end_time {} "2026-11-18T12:00:01Z"']
)
def test_absent_field_fits_only_negations(absent: str) -> None:
    for comparator in ("=", "<", "<=", ">", ">="):
        assert not hold(parsed(absent.format(comparator)), ROW)
        assert hold(parsed(f"NOT {absent.format(comparator)}"), ROW)
    assert hold(parsed(absent.format("!=")), ROW)
    assert not hold(parsed("labels.tier = g*"), ROW)
    assert hold(parsed("labels.tier != g* AND NOT error.message:*"), ROW)
    assert not hold(parsed(f"NOT {absent.format('!=')}"), ROW)


def test_text_of_an_execution_is_empty_where_it_has_none() -> None:
    child: Fields = {**ROW, "parent_execution_id": "p"}
    for text, fits in (('parent_execution_id = ""', ROW), ('parent_execution_id != ""', child)):
        assert [hold(parsed(text), row) for row in (ROW, child)] == [row is fits for row in (ROW, child)]
