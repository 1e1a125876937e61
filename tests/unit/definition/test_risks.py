"""What is allowed in a definition and goes wrong later is a warning, until the definition says what is meant."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.definition.examination import examine, examine_text
from windlass.definition.parsing import Format
from windlass.definition.verdict import warnings_of

URL = "https://example.org/orders"
POST = {"method": "POST", "url": URL}


def warned(node: dict[str, Any], **workflow: Any) -> list[tuple[str, str]]:
    verdict = examine({"name": "x", "nodes": [{"id": "a"} | node], **workflow})
    assert list(verdict.faults) == []
    return [(each.path, each.reason) for each in warnings_of(verdict, ())]


def request(config: dict[str, Any] | None = None, **node: Any) -> dict[str, Any]:
    return {"module": "http.request@1", "config": POST | (config or {}), **node}


REPEATED = [("nodes[0].config.method", "REPEATED_REQUEST")]


@pytest.mark.parametrize(
    "node",
    [
        request(),
        request({"method": "patch"}),
        request(retry={"attempts": 2}),
        request(retry={"budget": "1m"}),
        request(idempotent=False),
        request({"headers": {"accept": "*/*"}}),
    ],
)
def test_a_request_that_may_do_its_work_twice_is_a_warning(node: dict[str, Any]) -> None:
    assert warned(node) == REPEATED


@pytest.mark.parametrize(
    "node",
    [
        request({"method": "PUT"}),
        request({"method": "DELETE"}),
        request({"method": "{{ input.method }}"}),
        {"module": "http.request@1", "config": {"url": URL}},
        request(retry={"attempts": 1}),
        request(idempotent=True),
        request({"headers": {"idempotency-key": "order-{{ input.id }}"}}),
    ],
)
def test_a_request_that_is_sent_once_or_may_be_repeated_is_no_risk(node: dict[str, Any]) -> None:
    assert warned(node) == []


def test_the_policy_of_the_workflow_counts_for_nodes_that_have_none() -> None:
    assert warned(request(), retry={"attempts": 1}) == []
    assert warned(request(retry={"attempts": 2}), retry={"attempts": 1}) == REPEATED


def test_requests_of_loops_and_compensations_are_judged_too() -> None:
    body = {"module": "http.request@1", "config": POST}
    loop = {"module": "for_each@1", "config": {"items": [1], "body": body}}
    assert warned(loop) == [("nodes[0].config.body.config.method", "REPEATED_REQUEST")]
    assert warned(loop | {"idempotent": True}) == []
    undone = {"module": "noop@1", "idempotent": True, "compensate": body}
    assert warned(undone) == [("nodes[0].compensate.config.method", "REPEATED_REQUEST")]
    for mended in ({"idempotent": True}, {"retry": {"attempts": 1}}):
        assert warned(undone | {"compensate": body | mended}) == []
    assert warned(undone | {"retry": {"attempts": 1}}) == [], "a compensation has the policy of its node"


@pytest.mark.parametrize(
    ("module", "config"), [("wait_signal@1", {"signal": "paid"}), ("approval@1", {"title": "Pay?"})]
)
def test_a_wait_that_nothing_ends_is_a_warning(module: str, config: dict[str, Any]) -> None:
    wait = {"module": module, "config": config}
    assert warned(wait) == [("nodes[0].config", "ENDLESS_WAIT")]
    assert warned(wait, timeout="30d") == []
    assert warned({"module": module, "config": config | {"timeout": "7d"}}) == []


def test_a_warning_has_the_line_and_the_node_of_its_place() -> None:
    text = "name: x\nnodes:\n  - id: ask\n    module: approval@1\n    config: {title: Pay?}\n"
    (warning,) = warnings_of(examine_text(text, Format.YAML), ())
    assert (warning.line, warning.node) == (5, "ask")


@pytest.mark.parametrize(
    "node",
    [
        {"module": ["approval@1"], "config": {}},
        {"module": "approval@1", "config": [], "retry": 1},
        {"module": "http.request@1", "config": {"url": URL, "method": ["POST"], "headers": 1}},
        {"module": "http.request@1", "config": POST | {"headers": []}, "retry": 7, "compensate": []},
    ],
)
def test_what_is_of_the_wrong_type_is_a_fault_and_no_crash(node: dict[str, Any]) -> None:
    assert list(examine({"name": "x", "nodes": [{"id": "a"} | node]}).faults) != []
