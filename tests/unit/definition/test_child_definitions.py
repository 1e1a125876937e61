"""What a definition may say of workflows that its nodes start."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.definition.examination import examine
from windlass.definition.verdict import child_warnings, warnings_of

CHILD = {"workflow": "billing"}


def each(body: Any) -> dict[str, Any]:
    return {"id": "each", "module": "for_each@1", "config": {"items": [1, 2], "body": body}}


def sub(config: Any, **more: Any) -> dict[str, Any]:
    return {"id": "child", "module": "sub_workflow@1", "config": config, **more}


def faults(node: Any) -> set[tuple[str, str]]:
    document = {"name": "parent", "nodes": [node]}
    return {(fault.path.removeprefix("nodes[0].config"), fault.reason) for fault in examine(document).faults}


@pytest.mark.parametrize(
    "node",
    [
        sub({**CHILD, "version": 3, "onParentEnd": "ABANDON"}, inputs={"n": "{{ input.n }}"}),
        sub({"workflow": "{{ input.which }}", "version": "{{ input.version }}"}),
        each(CHILD),
        each({"workflow": "{{ item.kind }}", "version": 1, "inputs": {"n": "{{ item.n }}", "place": "{{ index }}"}}),
        each({"module": "sub_workflow@1", "config": CHILD, "inputs": {"n": "{{ item }}"}}),
    ],
)
def test_a_good_child_has_no_faults(node: Any) -> None:
    assert faults(node) == set()


@pytest.mark.parametrize(
    ("node", "path", "reason"),
    [
        (sub({}), ".workflow", "REQUIRED"),
        (sub({"workflow": "Not a name"}), ".workflow", "MALFORMED_NAME"),
        (sub({"workflow": None}), ".workflow", "REQUIRED"),
        (sub({**CHILD, "version": 0}), ".version", "OUT_OF_RANGE"),
        (sub({**CHILD, "version": 2**31}), ".version", "OUT_OF_RANGE"),
        (sub({**CHILD, "onParentEnd": "FORGET"}), ".onParentEnd", "UNKNOWN_VALUE"),
        (sub({**CHILD, "wait": True}), ".wait", "UNKNOWN_FIELD"),
        (sub({"workflow": "{{ nodes.nobody.output }}"}), ".workflow", "TEMPLATE_REFERENCE"),
        (each({**CHILD, "module": "noop@1"}), ".body.module", "UNKNOWN_FIELD"),
        (each({**CHILD, "config": {}}), ".body.config", "UNKNOWN_FIELD"),
        (each({"workflow": "Not a name"}), ".body.workflow", "MALFORMED_NAME"),
        (each({"workflow": "{{ nodes.nobody.output }}"}), ".body.workflow", "TEMPLATE_REFERENCE"),
        (each({**CHILD, "inputs": {"n": "{{ nodes.nobody.output }}"}}), ".body.inputs.n", "TEMPLATE_REFERENCE"),
        (each({"module": "sub_workflow@1"}), ".body.config.workflow", "REQUIRED"),
    ],
)
def test_a_child_that_is_not_as_it_must_be_is_a_fault(node: Any, path: str, reason: str) -> None:
    assert (path, reason) in faults(node)


@pytest.mark.parametrize("body", [CHILD, {"module": "sub_workflow@1", "config": CHILD}])
def test_turns_of_a_repeat_are_no_children(body: Any) -> None:
    """The runner of a turn evaluates `until`, and a child has no runner."""
    node = {"id": "again", "module": "repeat@1", "config": {"until": "output.done", "body": body}}
    assert {reason for _, reason in faults(node)} <= {"UNKNOWN_FIELD", "REQUIRED", "UNSUPPORTED_MODULE"}
    assert faults(node)


def test_workflows_that_are_unknown_and_a_workflow_that_starts_itself_are_warnings() -> None:
    nodes = [
        sub({"workflow": "unknown"}),
        {**sub({"workflow": "parent"}), "id": "own"},
        {**sub({"workflow": "known"}), "id": "good"},
        {**sub({"workflow": "{{ input.which }}"}), "id": "later"},
        each({"workflow": "unknown"}),
    ]
    verdict = examine({"name": "parent", "nodes": nodes})
    assert not verdict.faults
    found = [(warning.path, warning.reason, warning.node) for warning in child_warnings(verdict, {"known"})]
    assert found == [
        ("nodes[0].config.workflow", "WORKFLOW_NOT_FOUND", "child"),
        ("nodes[4].config.body.workflow", "WORKFLOW_NOT_FOUND", "each"),
        ("nodes[1].config.workflow", "SELF_REFERENCE", "own"),
    ]


def test_templates_of_a_child_that_is_an_item_need_a_runner_that_renders() -> None:
    verdict = examine({"name": "parent", "nodes": [each(CHILD)]})
    (warning,) = warnings_of(verdict, {"noop@1"})
    assert (warning.path, warning.reason) == ("nodes[0].config.body", "NOT_RENDERED")
