"""What a definition may say of loops, and what the templates of a body see."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.definition.examination import examine
from windlass.definition.limits import ITEMS_MAX
from windlass.definition.verdict import warnings_of

EACH = {"items": "{{ nodes.list.output.ids }}", "body": {"module": "noop@1"}}
AGAIN = {"until": "output.done", "body": {"module": "noop@1"}}
LIST = {"id": "list", "module": "transform@1"}


def document(module: str, config: Any) -> dict[str, Any]:
    loop = {"id": "loop", "module": module, "config": config}
    edges = [{"from": "list", "to": "loop"}]
    return {"name": "loops", "nodes": [LIST, loop, {"id": "late", "module": "noop@1"}], "edges": edges}


def faults(module: str, config: Any) -> set[tuple[str, str]]:
    return {(fault.path.removeprefix("nodes[1]."), fault.reason) for fault in examine(document(module, config)).faults}


@pytest.mark.parametrize(
    "config",
    [
        EACH,
        {**EACH, "items": [], "maxParallel": 1, "onItemFailure": "FAIL"},
        {**EACH, "items": [0] * ITEMS_MAX, "maxParallel": 1_000, "onItemFailure": "CONTINUE"},
        {**EACH, "maxParallel": "{{ input.width }}"},
        {**EACH, "body": {"module": "billing.charge@1", "config": {"any": 1}, "inputs": {"id": "{{ item.id }}"}}},
        {**EACH, "body": {"module": "condition@1", "config": {"expression": "item > index"}}},
    ],
)
def test_a_good_for_each_has_no_faults(config: Any) -> None:
    assert faults("for_each@1", config) == set()


@pytest.mark.parametrize(
    "config",
    [
        AGAIN,
        {**AGAIN, "until": "{{ output.n > index and nodes.list.output.n }}", "maxIterations": 10_000, "delay": "10s"},
        {**AGAIN, "body": {"module": "noop@1", "inputs": {"turn": "{{ index }}"}}},
    ],
)
def test_a_good_repeat_has_no_faults(config: Any) -> None:
    assert faults("repeat@1", config) == set()


@pytest.mark.parametrize(
    ("module", "config", "path", "reason"),
    [
        ("for_each@1", {}, "config.items", "REQUIRED"),
        ("for_each@1", {}, "config.body", "REQUIRED"),
        ("for_each@1", {**EACH, "items": {}}, "config.items", "WRONG_TYPE"),
        ("for_each@1", {**EACH, "items": [0] * (ITEMS_MAX + 1)}, "config.items", "TOO_LONG"),
        ("for_each@1", {**EACH, "maxParallel": 0}, "config.maxParallel", "OUT_OF_RANGE"),
        ("for_each@1", {**EACH, "maxParallel": 1_001}, "config.maxParallel", "OUT_OF_RANGE"),
        ("for_each@1", {**EACH, "onItemFailure": "IGNORE"}, "config.onItemFailure", "UNKNOWN_VALUE"),
        ("for_each@1", {**EACH, "until": "true"}, "config.until", "UNKNOWN_FIELD"),
        ("for_each@1", {**EACH, "body": "{{ input.body }}"}, "config.body", "WRONG_TYPE"),
        ("for_each@1", {**EACH, "body": {}}, "config.body.module", "REQUIRED"),
        ("for_each@1", {**EACH, "body": {"module": 7}}, "config.body.module", "WRONG_TYPE"),
        ("for_each@1", {**EACH, "body": {"module": "noop@2"}}, "config.body.module", "UNKNOWN_MODULE"),
        ("for_each@1", {**EACH, "body": {"module": "for_each@1"}}, "config.body.module", "UNSUPPORTED_MODULE"),
        ("for_each@1", {**EACH, "body": {"module": "sleep@1"}}, "config.body.module", "UNSUPPORTED_MODULE"),
        ("for_each@1", {**EACH, "body": {"module": "noop@1", "x": 1}}, "config.body.x", "UNKNOWN_FIELD"),
        ("for_each@1", {**EACH, "body": {"module": "noop@1", "inputs": []}}, "config.body.inputs", "WRONG_TYPE"),
        (
            "for_each@1",
            {**EACH, "body": {"module": "delay@1", "config": {"duration": "soon"}}},
            "config.body.config.duration",
            "BAD_DURATION",
        ),
        ("for_each@1", {**EACH, "items": "{{ item }}"}, "config.items", "TEMPLATE_REFERENCE"),
        (
            "for_each@1",
            {**EACH, "body": {"module": "noop@1", "inputs": {"x": "{{ output }}"}}},
            "config.body.inputs.x",
            "TEMPLATE_REFERENCE",
        ),
        (
            "for_each@1",
            {**EACH, "body": {"module": "noop@1", "inputs": {"x": "{{ nodes.late.output }}"}}},
            "config.body.inputs.x",
            "TEMPLATE_REFERENCE",
        ),
        ("repeat@1", {}, "config.until", "REQUIRED"),
        ("repeat@1", {}, "config.body", "REQUIRED"),
        ("repeat@1", {**AGAIN, "until": True}, "config.until", "WRONG_TYPE"),
        ("repeat@1", {**AGAIN, "until": ""}, "config.until", "TEMPLATE_SYNTAX"),
        ("repeat@1", {**AGAIN, "until": "item.done"}, "config.until", "TEMPLATE_REFERENCE"),
        ("repeat@1", {**AGAIN, "maxIterations": 0}, "config.maxIterations", "OUT_OF_RANGE"),
        ("repeat@1", {**AGAIN, "maxIterations": 10_001}, "config.maxIterations", "OUT_OF_RANGE"),
        ("repeat@1", {**AGAIN, "delay": "soon"}, "config.delay", "BAD_DURATION"),
        ("repeat@1", {**AGAIN, "items": []}, "config.items", "UNKNOWN_FIELD"),
        (
            "repeat@1",
            {**AGAIN, "body": {"module": "noop@1", "inputs": {"x": "{{ item }}"}}},
            "config.body.inputs.x",
            "TEMPLATE_REFERENCE",
        ),
    ],
)
def test_a_fault_of_a_loop_is_found_where_it_is(module: str, config: Any, path: str, reason: str) -> None:
    assert (path, reason) in faults(module, config)


@pytest.mark.parametrize("module", ["noop@1", None, ["for_each@1"]])
def test_nothing_else_has_a_body(module: Any) -> None:
    config = {"body": {"module": "nothing"}}
    assert not any(path.startswith("config.body.module") for path, _ in faults(module, config))


@pytest.mark.parametrize("config", [[], {}, {"body": 7}])
def test_a_body_that_is_none_is_one_fault(config: Any) -> None:
    assert faults("for_each@1", config)


def test_an_item_is_unknown_outside_of_a_body() -> None:
    (fault,) = examine({"name": "x", "nodes": [{**LIST, "inputs": {"x": "{{ item }}"}}]}).faults
    assert fault.message == "'item' is unknown; templates here see execution, input, nodes, state"


def test_the_references_of_a_body_are_its_own() -> None:
    config = {**EACH, "body": {"module": "noop@1", "inputs": {"x": "{{ nodes.list.output.more }}"}}}
    assert examine(document("for_each@1", config)).references == {"loop": ["list"], "loop.body": ["list"]}
    config = {**AGAIN, "until": "nodes.list.output.done"}
    assert examine(document("repeat@1", config)).references == {"loop.body": ["list"]}


def test_a_body_is_warned_of_like_a_node() -> None:
    body = {"module": "billing.charge@1", "inputs": {"x": "{{ item }}"}}
    verdict = examine(document("for_each@1", {**EACH, "items": [], "body": body}))
    told = {(each.path, each.reason) for each in warnings_of(verdict, {"noop@1", "transform@1"}, set())}
    path = "nodes[1].config.body"
    assert told == {(f"{path}.module", "MODULE_NOT_BUILT_IN"), (path, "NOT_RENDERED")}


def test_a_runner_that_cannot_evaluate_until_is_warned_of() -> None:
    verdict = examine(document("repeat@1", {**AGAIN, "body": {"module": "billing.charge@1"}}))
    announced = {"noop@1", "transform@1", "billing.charge@1"}
    (warning,) = warnings_of(verdict, announced, {"transform@1"})
    assert (warning.path, warning.reason) == ("nodes[1].config.until", "NOT_RENDERED")
    assert warnings_of(verdict, announced, announced) == []
