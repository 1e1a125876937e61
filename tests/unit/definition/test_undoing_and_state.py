"""What a definition may say of compensations, and of the keys of the workflow's state."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.definition.examination import examine
from windlass.definition.limits import STATE_KEYS_MAX
from windlass.definition.verdict import warnings_of


def faults(document: Any) -> set[tuple[str, str]]:
    return {(fault.path, fault.reason) for fault in examine(document).faults}


def test_a_compensation_is_checked_like_a_node() -> None:
    node = {
        "id": "pay",
        "module": "noop@1",
        "retry": {"initialDelay": "60s"},
        "compensate": {
            "module": "http.request@1",
            "config": {"method": "GET", "uri": "{{ nodes.ship.output }}"},
            "inputs": {"a": "{{ nodes.pay.output }}", "b": "{{ error.type }}", "c": "{{ item }}", "d": "{{ f() }}"},
            "retry": {"maxDelay": "50s"},
            "timeout": "25h",
            "when": "always",
        },
    }
    ship = {"id": "ship", "module": "noop@1", "inputs": {"x": "{{ error.type }}"}}
    assert faults({"name": "w", "nodes": [node, ship], "edges": [{"from": "pay", "to": "ship"}]}) == {
        ("nodes[0].compensate.config.url", "REQUIRED"),
        ("nodes[0].compensate.config.uri", "UNKNOWN_FIELD"),
        ("nodes[0].compensate.config.uri", "TEMPLATE_REFERENCE"),
        ("nodes[0].compensate.inputs.c", "TEMPLATE_REFERENCE"),
        ("nodes[0].compensate.inputs.d", "TEMPLATE_CALL"),
        ("nodes[0].compensate.retry.maxDelay", "OUT_OF_RANGE"),
        ("nodes[0].compensate.timeout", "OUT_OF_RANGE"),
        ("nodes[0].compensate.when", "UNKNOWN_FIELD"),
        ("nodes[1].inputs.x", "TEMPLATE_REFERENCE"),
    }


@pytest.mark.parametrize(
    ("compensate", "reason", "path"),
    [
        ({}, "REQUIRED", ".module"),
        (None, "WRONG_TYPE", ""),
        ("noop@1", "WRONG_TYPE", ""),
        ({"module": "nope@1"}, "UNKNOWN_MODULE", ".module"),
        ({"module": "sleep@1", "config": {"duration": "1s"}}, "UNSUPPORTED_MODULE", ".module"),
    ],
)
def test_a_compensation_names_a_module_of_a_runner(compensate: Any, reason: str, path: str) -> None:
    document = {"name": "w", "nodes": [{"id": "a", "module": "noop@1", "compensate": compensate}]}
    assert faults(document) == {(f"nodes[0].compensate{path}", reason)}


def test_a_compensation_reads_its_node_and_those_before_it_and_warns_of_its_module() -> None:
    compensate = {"module": "shop.refund@1", "inputs": {"x": "{{ nodes.a.output }}{{ nodes.b.output }}"}}
    nodes = [{"id": "a", "module": "noop@1"}, {"id": "b", "module": "noop@1", "compensate": compensate}]
    verdict = examine({"name": "w", "nodes": nodes, "edges": [{"from": "a", "to": "b"}]})
    assert verdict.faults == []
    assert verdict.references == {"b$undo": ["a", "b"]}
    warned = {(each.path, each.reason) for each in warnings_of(verdict, {"noop@1"})}
    assert warned == {("nodes[1].compensate.module", "MODULE_NOT_BUILT_IN"), ("nodes[1].compensate", "NOT_RENDERED")}


@pytest.mark.parametrize(
    ("inputs", "found"),
    [
        ({}, {("nodes[0].inputs", "REQUIRED")}),
        (["region"], {("nodes[0].inputs", "WRONG_TYPE")}),
        ({"region": 1, "_a9": "{{ input.x }}"}, set()),
        ({"a-b": 1, "9": 2}, {("nodes[0].inputs.a-b", "MALFORMED_KEY"), ("nodes[0].inputs.9", "MALFORMED_KEY")}),
        ({f"k{number}": number for number in range(STATE_KEYS_MAX)}, set()),
        ({f"k{number}": number for number in range(STATE_KEYS_MAX + 1)}, {("nodes", "TOO_MANY_KEYS")}),
    ],
)
def test_the_keys_that_a_node_sets_are_checked(inputs: Any, found: set[tuple[str, str]]) -> None:
    document = {"name": "w", "nodes": [{"id": "a", "module": "state.set@1", "inputs": inputs}, "no node"]}
    assert faults(document) - {("nodes[1]", "WRONG_TYPE")} == found
