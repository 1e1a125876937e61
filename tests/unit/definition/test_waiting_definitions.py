"""Faults in the configs of nodes that wait for signals and for people."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.definition.test_definition_faults import REMOVED, faults


@pytest.mark.parametrize(
    ("config", "field", "reason"),
    [
        ({"signal": "paid"}, "", ""),
        ({"signal": "paid-{{ input.id }}", "timeout": "2d", "onTimeout": "CONTINUE"}, "", ""),
        ({"signal": "x" * 128, "timeout": "{{ input.wait }}"}, "", ""),
        ({}, ".signal", "REQUIRED"),
        ({"signal": ""}, ".signal", "REQUIRED"),
        ({"signal": 7}, ".signal", "WRONG_TYPE"),
        ({"signal": "x" * 129}, ".signal", "TOO_LONG"),
        ({"signal": "paid", "timeout": "0s"}, ".timeout", "OUT_OF_RANGE"),
        ({"signal": "paid", "timeout": "soon"}, ".timeout", "BAD_DURATION"),
        ({"signal": "paid", "onTimeout": "REJECT"}, ".onTimeout", "UNKNOWN_VALUE"),
        ({"signal": "paid", "name": "x"}, ".name", "UNKNOWN_FIELD"),
    ],
)
def test_a_wait_for_a_signal_names_it(config: Any, field: str, reason: str) -> None:
    node = {"id": "wait", "module": "wait_signal@1", "config": config}
    assert faults({"name": "x", "nodes": [node]}) == ({(f"nodes[0].config{field}", reason)} if reason else set())


@pytest.mark.parametrize(
    ("config", "field", "reason"),
    [
        ({"form": {"type": "object"}, "assignees": ["ann", "role:ADMIN"], "required": 2}, "", ""),
        ({"timeout": "7d", "onTimeout": "REJECT", "required": "{{ input.eyes }}"}, "", ""),
        ({"form": {"enum": ["{{ input.a }}"], "type": "{{ input.kind }}"}}, "", ""),
        ({"form": "{{ input.form }}"}, "", ""),
        ({"title": REMOVED}, ".title", "REQUIRED"),
        ({"title": "x" * 257}, ".title", "TOO_LONG"),
        ({"form": True}, ".form", "WRONG_TYPE"),
        ({"form": {"type": "nope"}}, ".form", "BAD_SCHEMA"),
        ({"form": {"$ref": "https://example.org/form"}}, ".form", "BAD_SCHEMA"),
        ({"assignees": "ann"}, ".assignees", "WRONG_TYPE"),
        ({"assignees": [7]}, ".assignees[0]", "WRONG_TYPE"),
        ({"assignees": ["a"] * 51}, ".assignees", "TOO_LONG"),
        ({"required": 0}, ".required", "OUT_OF_RANGE"),
        ({"required": 11}, ".required", "OUT_OF_RANGE"),
        ({"timeout": 0}, ".timeout", "OUT_OF_RANGE"),
        ({"onTimeout": "CONTINUE"}, ".onTimeout", "UNKNOWN_VALUE"),
        ({"who": "ann"}, ".who", "UNKNOWN_FIELD"),
    ],
)
def test_an_approval_says_what_is_asked_of_whom(config: Any, field: str, reason: str) -> None:
    asked = {name: value for name, value in ({"title": "Pay?"} | config).items() if value is not REMOVED}
    node = {"id": "ask", "module": "approval@1", "config": asked}
    assert faults({"name": "x", "nodes": [node]}) == ({(f"nodes[0].config{field}", reason)} if reason else set())
