"""Every fault of a definition is told by name and path, all at once, and a good definition has none."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.definition import templates
from windlass.definition.config_schemas import CONFIG_SCHEMAS
from windlass.definition.examination import examine
from windlass.definition.faults import Fault
from windlass.definition.json_values import sift
from windlass.definition.limits import FAULTS_MAX
from windlass.definition.modules import CONTROL_MODULES
from windlass.definition.templates import TemplateParser
from windlass.definition.verdict import warnings_of

BUILT_IN = set(CONFIG_SCHEMAS) - CONTROL_MODULES
NAP = {"id": "nap", "module": "sleep@1", "config": {"duration": "{{ input.wait }}"}}


def faults(document: Any) -> set[tuple[str, str]]:
    return {(fault.path, fault.reason) for fault in examine(document).faults}


def good() -> dict[str, Any]:
    """A definition with one of everything that the format has."""
    return {
        "name": "order-intake",
        "description": "takes orders in",
        "inputSchema": {"type": "object", "properties": {"id": {"type": "integer"}}},
        "initialState": {"region": "eu"},
        "timeout": "3600s",
        "onFailure": "CONTINUE",
        "retry": {"attempts": 3, "initialDelay": "1s", "factor": 2, "maxDelay": "300s", "budget": "3600s"},
        "nodes": [
            {
                "id": "fetch",
                "module": "http.request@1",
                "config": {"method": "GET", "url": "https://example.org/{{ input.id }}"},
                "inputs": {"region": "{{ state.region }}", "of": "{{ execution.id }}"},
                "timeout": "30s",
                "retry": {"attempts": 5},
                "idempotent": True,
                "join": "ALL",
                "runnerLabels": {"gpu": "true"},
            },
            {"id": "store", "module": "billing.charge@2", "inputs": {"row": "{{ nodes.fetch.output }}"}},
            {"id": "alarm", "module": "noop@1"},
            {"id": "pause", "module": "sleep@1", "config": {"duration": "1.5s"}},
            {"id": "choose", "module": "condition@1", "config": {"expression": "nodes.fetch.output.ok"}},
            {"id": "meet", "module": "join@1", "join": "ANY"},
        ],
        "edges": [
            {"from": "fetch", "to": "store"},
            {"from": "fetch", "to": "alarm", "when": "failure"},
            {"from": "store", "to": "pause", "when": "always"},
            {"from": "pause", "to": "choose"},
            {"from": "choose", "to": "meet", "when": "true"},
            {"from": "choose", "to": "meet", "when": "false"},
        ],
        "output": {"total": "{{ nodes.store.output.total }}", "kind": "order"},
    }


def test_good_definition_has_no_faults_and_one_canonical_form() -> None:
    verdict = examine(good())
    assert verdict.faults == []
    assert verdict.name == "order-intake"
    assert json.loads(verdict.canonical) == good()
    shuffled = dict(reversed(list(good().items())))
    assert examine(shuffled).canonical == verdict.canonical


def test_own_module_is_accepted_with_a_warning_while_no_runner_announces_it() -> None:
    verdict = examine(good())
    (warning,) = warnings_of(verdict, {*BUILT_IN, "billing.charge@1"}, BUILT_IN)
    assert (warning.path, warning.reason) == ("nodes[1].module", "MODULE_NOT_BUILT_IN")
    assert warnings_of(verdict, {*BUILT_IN, "billing.charge@2"}, BUILT_IN) == []
    assert [each.reason for each in warnings_of(verdict, ())] == ["MODULE_NOT_BUILT_IN"], "nobody is connected yet"


def test_work_that_waits_for_a_module_or_a_renderer_is_warned_of() -> None:
    verdict = examine({**good(), "nodes": [*good()["nodes"], NAP]})
    foreign = {"http.request@1", "noop@1", "condition@1", "billing.charge@2"}
    assert told(warnings_of(verdict, foreign - {"noop@1"}, foreign)) == {
        ("nodes[2].module", "MODULE_NOT_ANNOUNCED"),
        ("nodes[6]", "NOT_RENDERED"),
        ("output", "NOT_RENDERED"),
    }
    waiting = {f"nodes[{place}]" for place in (0, 1, 4, 6)} | {"output"}
    assert told(warnings_of(verdict, foreign)) == {(path, "NOT_RENDERED") for path in waiting}
    assert warnings_of(verdict, {*foreign, "transform@1"}, {"transform@1"}) == []


def test_plain_definition_needs_no_renderer() -> None:
    nap = {"id": "s", "module": "sleep@1", "config": {"duration": "1s"}}
    nodes = [{"id": "a", "module": "x.y@1", "inputs": {"x": 1}}, nap]
    assert warnings_of(examine({"name": "plain", "nodes": nodes, "edges": []}), {"x.y@1"}) == []


def told(warnings: list[Fault]) -> set[tuple[str, str]]:
    return {(each.path, each.reason) for each in warnings}


def test_long_text_with_many_short_expressions_is_good() -> None:
    document = good()
    document["nodes"][0]["inputs"]["mail"] = "{{ input.a }} and {{ state.b }}; " * 1_900
    assert examine(document).faults == []


def test_empty_graph_is_good() -> None:
    assert faults({"name": "nothing"}) == set()
    assert faults({"name": "nothing", "nodes": [], "edges": []}) == set()


def test_separate_components_are_good() -> None:
    nodes = [{"id": name, "module": "noop@1"} for name in ("a", "b", "c", "d")]
    edges = [{"from": "a", "to": "b"}, {"from": "c", "to": "d"}]
    assert faults({"name": "two", "nodes": nodes, "edges": edges}) == set()


REMOVED = object()
# A value that is put at a place of the good definition, and the fault that it makes.
CORPUS: list[tuple[str, Any, str, str]] = [
    ("name", REMOVED, "name", "REQUIRED"),
    ("name", "Order", "name", "MALFORMED_NAME"),
    ("name", "a" * 64, "name", "MALFORMED_NAME"),
    ("name", 7, "name", "MALFORMED_NAME"),
    ("name", None, "name", "REQUIRED"),
    ("description", 3, "description", "WRONG_TYPE"),
    ("description", "x" * 4097, "description", "TOO_LONG"),
    ("surprise", 1, "surprise", "UNKNOWN_FIELD"),
    ("nodes[7]", 1, "nodes[7]", "UNKNOWN_FIELD"),
    ("timeout", "soon", "timeout", "BAD_DURATION"),
    ("timeout", "-1s", "timeout", "BAD_DURATION"),
    ("timeout", "0s", "timeout", "OUT_OF_RANGE"),
    ("timeout", "9000h", "timeout", "BAD_DURATION"),
    ("timeout", [], "timeout", "BAD_DURATION"),
    ("onFailure", "PANIC", "onFailure", "UNKNOWN_VALUE"),
    ("onFailure", None, "onFailure", "UNKNOWN_VALUE"),
    ("initialState", [], "initialState", "WRONG_TYPE"),
    ("retry", 3, "retry", "WRONG_TYPE"),
    ("retry.attempts", 0, "retry.attempts", "OUT_OF_RANGE"),
    ("retry.attempts", 101, "retry.attempts", "OUT_OF_RANGE"),
    ("retry.attempts", 1.5, "retry.attempts", "WRONG_TYPE"),
    ("retry.attempts", True, "retry.attempts", "WRONG_TYPE"),
    ("retry.factor", 0.5, "retry.factor", "OUT_OF_RANGE"),
    ("retry.factor", 11, "retry.factor", "OUT_OF_RANGE"),
    ("retry.factor", "2", "retry.factor", "WRONG_TYPE"),
    ("retry.maxDelay", "500ms", "retry.maxDelay", "OUT_OF_RANGE"),
    ("retry.maxDelay", "soon", "retry.maxDelay", "BAD_DURATION"),
    ("retry.budget", "x", "retry.budget", "BAD_DURATION"),
    ("retry.tries", 3, "retry.tries", "UNKNOWN_FIELD"),
    ("inputSchema", 3, "inputSchema", "BAD_SCHEMA"),
    ("inputSchema", {"type": "nope"}, "inputSchema", "BAD_SCHEMA"),
    ("inputSchema", {"pattern": "("}, "inputSchema", "BAD_SCHEMA"),
    ("inputSchema", {"$ref": "http://127.0.0.1:1/x"}, "inputSchema", "BAD_SCHEMA"),
    ("inputSchema", {"$ref": "file:///etc/passwd"}, "inputSchema", "BAD_SCHEMA"),
    ("inputSchema", {"$ref": "#/nowhere"}, "inputSchema", "BAD_SCHEMA"),
    ("nodes", {}, "nodes", "WRONG_TYPE"),
    ("nodes.0", "fetch", "nodes[0]", "WRONG_TYPE"),
    ("nodes.0.id", REMOVED, "nodes[0].id", "REQUIRED"),
    ("nodes.0.id", "Fetch", "nodes[0].id", "MALFORMED_ID"),
    ("nodes.0.id", "a" * 64, "nodes[0].id", "MALFORMED_ID"),
    ("nodes.2.id", "fetch", "nodes[2].id", "DUPLICATE_ID"),
    ("nodes.0.module", REMOVED, "nodes[0].module", "REQUIRED"),
    ("nodes.0.module", 5, "nodes[0].module", "WRONG_TYPE"),
    ("nodes.0.module", "noop", "nodes[0].module", "MODULE_VERSION_REQUIRED"),
    ("nodes.0.module", "noop@0", "nodes[0].module", "MALFORMED_MODULE"),
    ("nodes.0.module", "noop@2", "nodes[0].module", "UNKNOWN_MODULE"),
    ("nodes.0.module", "fetch@1", "nodes[0].module", "UNKNOWN_MODULE"),
    ("nodes.0.module", "http.request@2", "nodes[0].module", "UNKNOWN_MODULE"),
    ("nodes.0.module", "Billing.Charge@1", "nodes[0].module", "MALFORMED_MODULE"),
    ("nodes.0.module", "a." + "b" * 130 + "@1", "nodes[0].module", "MALFORMED_MODULE"),
    ("nodes.0.config", "x", "nodes[0].config", "WRONG_TYPE"),
    ("nodes.0.inputs", [], "nodes[0].inputs", "WRONG_TYPE"),
    ("nodes.0.timeout", "0s", "nodes[0].timeout", "OUT_OF_RANGE"),
    ("nodes.0.timeout", "24.001h", "nodes[0].timeout", "OUT_OF_RANGE"),
    ("nodes.0.retry.attempts", -1, "nodes[0].retry.attempts", "OUT_OF_RANGE"),
    ("nodes.0.retry.initialDelay", "10m", "nodes[0].retry.maxDelay", "OUT_OF_RANGE"),
    ("nodes.0.idempotent", "yes", "nodes[0].idempotent", "WRONG_TYPE"),
    ("nodes.0.join", "SOME", "nodes[0].join", "UNKNOWN_VALUE"),
    ("nodes.0.runnerLabels", ["gpu"], "nodes[0].runnerLabels", "WRONG_TYPE"),
    ("nodes.0.runnerLabels", {"gpu": True}, "nodes[0].runnerLabels.gpu", "WRONG_TYPE"),
    ("nodes.0.surprise", 1, "nodes[0].surprise", "UNKNOWN_FIELD"),
    ("nodes.3.config", {}, "nodes[3].config", "REQUIRED"),
    ("nodes.3.config", {"duration": "1s", "until": "x"}, "nodes[3].config", "REQUIRED"),
    ("nodes.3.config", {"duration": "later"}, "nodes[3].config.duration", "BAD_DURATION"),
    ("nodes.3.config", {"until": "2026-13-01T00:00:00Z"}, "nodes[3].config.until", "BAD_TIME"),
    ("nodes.3.config", {"until": "2026-12-01T00:00:00"}, "nodes[3].config.until", "BAD_TIME"),
    ("nodes.3.config", {"until": 5}, "nodes[3].config.until", "BAD_TIME"),
    ("nodes.3.config", {"until": "9999-12-31T23:59:59-01:00"}, "nodes[3].config.until", "BAD_TIME"),
    ("nodes.3.config", {"until": "9999-12-31T23:59:59.999999Z"}, "nodes[3].config.until", "BAD_TIME"),
    ("nodes.3.config", {"duration": "366d"}, "nodes[3].config.duration", "BAD_DURATION"),
    ("nodes.3.config", {"duration": "1s", "x": 1}, "nodes[3].config.x", "UNKNOWN_FIELD"),
    ("nodes.5.config", {"x": 1}, "nodes[5].config.x", "UNKNOWN_FIELD"),
    ("nodes.0.inputs.region", "{{ state.region", "nodes[0].inputs.region", "TEMPLATE_SYNTAX"),
    ("nodes.0.inputs.region", "{% if %}", "nodes[0].inputs.region", "TEMPLATE_SYNTAX"),
    ("nodes.0.inputs.region", "{{ secrets.x }}", "nodes[0].inputs.region", "TEMPLATE_REFERENCE"),
    ("nodes.0.inputs.region", "{{ nodes.store.output }}", "nodes[0].inputs.region", "TEMPLATE_REFERENCE"),
    ("nodes.0.inputs.region", "{{ nodes.fetch.output }}", "nodes[0].inputs.region", "TEMPLATE_REFERENCE"),
    ("nodes.0.inputs.region", "{{ nodes.ghost.output }}", "nodes[0].inputs.region", "TEMPLATE_REFERENCE"),
    ("nodes.0.inputs.region", "{{ nodes['ghost'].output }}", "nodes[0].inputs.region", "TEMPLATE_REFERENCE"),
    ("nodes.0.inputs.region", [{"a": "{{ foo }}"}], "nodes[0].inputs.region[0].a", "TEMPLATE_REFERENCE"),
    ("nodes.0.inputs.region", [{"a": "{{ input.pop(1) }}"}], "nodes[0].inputs.region[0].a", "TEMPLATE_CALL"),
    ("nodes.4.config.expression", "nodes.alarm.output", "nodes[4].config.expression", "TEMPLATE_REFERENCE"),
    ("nodes.4.config.expression", [1, 2], "nodes[4].config.expression", "WRONG_TYPE"),
    ("nodes.4.config.expression", True, "nodes[4].config.expression", "WRONG_TYPE"),
    ("nodes.4.config.expression", "1 +", "nodes[4].config.expression", "TEMPLATE_SYNTAX"),
    ("nodes.4.config.expression", "input.keys()", "nodes[4].config.expression", "TEMPLATE_CALL"),
    ("nodes.0.inputs.region", "{{ input.a }}" + "x" * 65_536, "nodes[0].inputs.region", "TEMPLATE_SYNTAX"),
    ("nodes.0.inputs.region", "{{ " + "1+" * 2_048 + "1 }}", "nodes[0].inputs.region", "TEMPLATE_SYNTAX"),
    ("nodes.0.inputs.region", '{{ "}}" ' + "+ 1" * 2_048 + " }}", "nodes[0].inputs.region", "TEMPLATE_SYNTAX"),
    ("nodes.0.inputs.region", ["{{ " + "1" * 4_090 + " }}"] * 9, "nodes[0].inputs.region[8]", "TEMPLATE_SYNTAX"),
    ("output.total", "{{ nodes.ghost.output }}", "output.total", "TEMPLATE_REFERENCE"),
    ("nodes.0.config.method", "FETCH", "nodes[0].config.method", "UNKNOWN_VALUE"),
    ("nodes.0.config.uri", "https://example.org", "nodes[0].config.uri", "UNKNOWN_FIELD"),
    ("nodes.0.config.url", REMOVED, "nodes[0].config.url", "REQUIRED"),
    ("nodes.0.config.url", "ftp://example.org", "nodes[0].config.url", "BAD_URL"),
    ("nodes.0.config.headers", {"a": [1]}, "nodes[0].config.headers.a", "WRONG_TYPE"),
    ("nodes.0.config.timeout", "soon", "nodes[0].config.timeout", "BAD_DURATION"),
    ("nodes.0.config.timeout", -1, "nodes[0].config.timeout", "BAD_DURATION"),
    ("nodes.2.config.x", 1, "nodes[2].config.x", "UNKNOWN_FIELD"),
    ("nodes.4.config", {}, "nodes[4].config.expression", "REQUIRED"),
    ("nodes.4.config.expr", "true", "nodes[4].config.expr", "UNKNOWN_FIELD"),
    ("edges.4.when", "two", "edges[4].when", "UNKNOWN_BRANCH"),
    ("edges.3.when", "true", "edges[3].when", "UNKNOWN_BRANCH"),
    ("edges", "x", "edges", "WRONG_TYPE"),
    ("edges.0", [], "edges[0]", "WRONG_TYPE"),
    ("edges.0.from", REMOVED, "edges[0].from", "REQUIRED"),
    ("edges.0.to", "ghost", "edges[0].to", "UNKNOWN_NODE"),
    ("edges.0.to", "fetch", "edges[0]", "SELF_EDGE"),
    ("edges.0.when", True, "edges[0].when", "WRONG_TYPE"),
    ("edges.0.when", "", "edges[0].when", "MALFORMED_BRANCH"),
    ("edges.0.when", None, "edges[0].when", "REQUIRED"),
    ("edges.0.if", "x", "edges[0].if", "UNKNOWN_FIELD"),
    ("edges.5.when", "true", "edges[5]", "DUPLICATE_EDGE"),
    ("edges.3.to", "store", "edges", "CYCLE"),
    ("initialState.region", math.nan, "initialState.region", "NOT_A_NUMBER"),
    ("initialState.region", math.inf, "initialState.region", "NOT_A_NUMBER"),
    ("initialState.region", "a\x00b", "initialState.region", "NUL"),
]


def put(document: Any, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for step in parents:
        document = document[int(step)] if isinstance(document, list) else document.setdefault(step, {})
    key: Any = int(last) if isinstance(document, list) else last
    if value is REMOVED:
        del document[key]
    else:
        document[key] = value


@pytest.mark.parametrize(("at", "value", "path", "reason"), CORPUS)
def test_fault_is_found_where_it_is(at: str, value: Any, path: str, reason: str) -> None:
    document = copy.deepcopy(good())
    put(document, at, value)
    assert (path, reason) in faults(document)


@pytest.mark.parametrize(
    ("cases", "found"),
    [
        ([{"when": "input.n > 5", "branch": "many"}], set()),
        (
            [{"when": "true", "branch": "a"}, {"when": True, "branch": "b"}],
            {("nodes[0].config.cases[1].when", "WRONG_TYPE")},
        ),
        # These are never rendered: the module evaluates each of them as it stands.
        ("{{ input.cases }}", {("nodes[0].config.cases", "WRONG_TYPE")}),
        ([{"when": "true", "branch": "{{ input.b }}"}], {("nodes[0].config.cases[0].branch", "MALFORMED_BRANCH")}),
        (
            ["x", {"branch": "a"}],
            {("nodes[0].config.cases[0]", "WRONG_TYPE"), ("nodes[0].config.cases[1].when", "REQUIRED")},
        ),
    ],
)
def test_when_of_a_switch_is_text(cases: Any, found: set[tuple[str, str]]) -> None:
    node = {"id": "choose", "module": "switch@1", "config": {"cases": cases, "default": "none"}}
    assert faults({"name": "x", "nodes": [node]}) == found


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"duration": "1h"}, ""),
        ({"duration": 3600}, ""),
        ({"duration": "365d"}, "OUT_OF_RANGE"),
        ({"duration": 3600.5}, "OUT_OF_RANGE"),
        ({"duration": "{{ input.long }}"}, ""),
        ({"duration": "soon"}, "BAD_DURATION"),
        ({}, "REQUIRED"),
    ],
)
def test_delay_takes_an_hour_at_most(config: Any, reason: str) -> None:
    node = {"id": "hold", "module": "delay@1", "config": config}
    found = {("nodes[0].config.duration", reason)} if reason else set()
    assert faults({"name": "x", "nodes": [node]}) == found


ANY_LABEL = ("one", "two", "true", "approved", "rejected")
SWITCH = {"cases": [{"when": "input.x", "branch": "one"}]}


@pytest.mark.parametrize(
    ("module", "config", "taken"),
    [
        ("switch@1", SWITCH, {"one"}),
        ("switch@1", {**SWITCH, "default": "two"}, {"one", "two"}),
        ("switch@1", {**SWITCH, "default": "{{ input.b }}"}, {*ANY_LABEL}),
        ("condition@1", {"expression": "input.x"}, {"true"}),
        ("wait_signal@1", {"signal": "paid"}, set()),
        ("approval@1", {"title": "Pay?"}, {"approved", "rejected"}),
        ("noop@1", {}, set()),
        ("switch@1", {"cases": "x"}, {*ANY_LABEL}),
        ("join@1", {}, set()),
        ("billing.charge@1", {}, {*ANY_LABEL}),
    ],
)
def test_an_edge_names_a_branch_that_its_node_can_take(module: str, config: Any, taken: set[str]) -> None:
    labels = ["success", "failure", "always", *ANY_LABEL]
    nodes = [{"id": "from", "module": module, "config": config}]
    nodes += [{"id": f"n{place}", "module": "noop@1"} for place in range(len(labels))]
    edges = [{"from": "from", "to": f"n{place}", "when": label} for place, label in enumerate(labels)]
    found = examine({"name": "x", "nodes": nodes, "edges": edges}).faults
    refused = {labels[int(fault.path[6])] for fault in found if fault.path.startswith("edges")}
    assert refused == {*ANY_LABEL} - taken
    assert {fault.reason for fault in found if fault.node == "from"} <= {"UNKNOWN_BRANCH", "WRONG_TYPE"}


def test_what_holds_a_template_is_checked_where_it_is_rendered() -> None:
    config = {"method": "{{ input.m }}", "url": "{{ input.u }}", "headers": "{{ input.h }}", "timeout": "{{ 1 }}s"}
    assert faults({"name": "x", "nodes": [{"id": "a", "module": "http.request@1", "config": config}]}) == set()
    node = {"id": "a", "module": "fail@1", "config": {"untilAttempt": "{{ input.n }}", "type": 5}}
    assert faults({"name": "x", "nodes": [node]}) == {("nodes[0].config.type", "WRONG_TYPE")}


def test_config_of_a_module_that_is_none_has_no_faults() -> None:
    node = {"id": "a", "module": "edge", "config": {"x": 1}}
    assert faults({"name": "x", "nodes": [node]}) == {("nodes[0].module", "MODULE_VERSION_REQUIRED")}


def test_of_a_large_config_one_fault_is_told_and_quickly() -> None:
    node = {"id": "a", "module": "switch@1", "config": {"cases": [1] * 100_000}}
    assert len(examine({"name": "x", "nodes": [node]}).faults) == 1
    node["config"] = {"cases": [{"when": "input.x", "branch": "b"}] * 2_000}
    assert faults({"name": "x", "nodes": [node]}) == set()


@pytest.mark.parametrize(
    ("template", "read"),
    [
        ("list of nodes: {{ input.x }}", {}),
        ("{{ 'nodes' }}{# nodes.a #}{% raw %}{{ nodes.a }}{% endraw %}", {}),
        ('{{ "nodes[\'a\']" }}{{ input.nodes["a"] }}', {}),
        ("{{ nodes.a.output.id }}", {"c": ["a"]}),
        ("{{ nodes [ 'a' ] }} {{ nodes[\"b\"].output['x'] }}", {"c": ["a", "b"]}),
        ("{{ nodes.a.output or nodes['b'].output }}", {"c": ["a", "b"]}),
        ("{{ nodes[input.x].output }}", {"c": None}),
        ("{{ nodes['a'].output._00 }}", {"c": ["a"]}),
        ("{{ nodes['a' ~ input.x] }} {{ nodes.b }}", {"c": None}),
        ("{{ nodes | length }}", {"c": None}),
        ("{% set all = nodes %}{{ all.a }}", {"c": None}),
    ],
)
def test_references_are_those_that_the_parser_of_the_language_finds(template: str, read: Any) -> None:
    nodes = [{"id": name, "module": "noop@1"} for name in "ab"]
    nodes.append({"id": "c", "module": "transform@1", "inputs": {"t": template}})  # type: ignore[dict-item]
    verdict = examine({"name": "x", "nodes": nodes, "edges": [{"from": f, "to": "c"} for f in "ab"]})
    assert (verdict.faults, verdict.references) == ([], read)


def test_expressions_and_the_output_have_references_too() -> None:
    assert examine(good()).references == {"store": ["fetch"], "choose": ["fetch"], "$output": ["store"]}


@pytest.mark.parametrize("until", ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59+14:00", "0001-01-01T00:00:00+14:00"])
def test_any_time_that_a_timestamp_holds_may_be_waited_for(until: str) -> None:
    document = good()
    document["nodes"][3]["config"] = {"until": until}
    assert not faults(document)


def test_all_faults_are_told_at_once() -> None:
    document = good()
    document["name"] = "Order"
    document["nodes"][0]["module"] = "noop"
    document["nodes"][1]["retry"] = {"attempts": 0}
    document["edges"].append({"from": "meet", "to": "ghost"})
    document["edges"].append({"from": "pause", "to": "store"})
    assert faults(document) == {
        ("name", "MALFORMED_NAME"),
        ("nodes[0].module", "MODULE_VERSION_REQUIRED"),
        ("nodes[1].retry.attempts", "OUT_OF_RANGE"),
        ("edges[6].to", "UNKNOWN_NODE"),
        ("edges", "CYCLE"),
    }


def test_fault_of_the_schema_is_one_among_the_others() -> None:
    verdict = examine({**good(), "name": 3}, lambda schema: "is no schema")
    assert Fault("inputSchema", "BAD_SCHEMA", "is no schema") in verdict.faults
    assert len(verdict.faults) == 2


def test_what_is_no_json_is_one_fault_among_the_others() -> None:
    document = good()
    document["name"] = "Order"
    document["timeout"] = math.inf
    document["initialState"]["deep"] = nested(31)
    document["inputSchema"]["maximum"] = math.nan
    document["nodes"][0]["inputs"]["region"] = "a\x00b"
    document["nodes"][0]["retry"]["attempts"] = -math.inf
    document["nodes"][1]["module"] = "\x00"
    document["nodes"][2]["module"] = "noop"
    deep = ("initialState.deep" + "[0]" * 28)[:200]
    assert faults(document) == {
        ("name", "MALFORMED_NAME"),
        ("timeout", "NOT_A_NUMBER"),
        (deep, "TOO_DEEP"),
        ("inputSchema.maximum", "NOT_A_NUMBER"),
        ("nodes[0].inputs.region", "NUL"),
        ("nodes[0].retry.attempts", "NOT_A_NUMBER"),
        ("nodes[1].module", "NUL"),
        ("nodes[2].module", "MODULE_VERSION_REQUIRED"),
    }
    assert len(examine(document).faults) == 8


def test_cycle_names_the_nodes_on_it() -> None:
    document = good()
    document["edges"].append({"from": "choose", "to": "store"})
    (fault,) = examine(document).faults
    assert fault.message.endswith("store → pause → choose → store")


@pytest.mark.parametrize("document", [None, [], "text", 3, True])
def test_what_is_no_object_is_no_definition(document: Any) -> None:
    assert faults(document) == {("", "WRONG_TYPE")}


def test_key_with_nul_is_a_fault() -> None:
    assert ("initialState", "NUL") in faults({"name": "x", "initialState": {"a\x00": 1}})


def test_faults_end_but_what_cannot_be_kept_is_taken_out_all_the_same() -> None:
    sifted = sift([math.nan] * 3 * FAULTS_MAX)
    assert sifted.value == [None] * 3 * FAULTS_MAX
    assert len(sifted.faults) == len(sifted.gaps) == FAULTS_MAX
    sifted = sift({f"{number}\x00": math.nan for number in range(3 * FAULTS_MAX)})
    assert (len(sifted.faults), len(sifted.gaps)) == (FAULTS_MAX, 0)


def test_templates_are_read_until_there_are_faults_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Counting(TemplateParser):
        def references(self, text: Any, *more: Any) -> Any:
            asked.append(text)
            return super().references(text, *more)

    monkeypatch.setattr(templates, "TemplateParser", Counting)
    document = good()
    document["nodes"][1]["inputs"] = {"rows": ["{{ foo }}"] * 3 * FAULTS_MAX}
    assert len(examine(document).faults) == FAULTS_MAX
    assert len(asked) < 2 * FAULTS_MAX


def test_definition_of_nothing_but_faults_has_no_more_of_them() -> None:
    document = {"name": "Order", "inputSchema": 3, **{f"x{number}": 1 for number in range(3 * FAULTS_MAX)}}
    assert len(examine(document).faults) == FAULTS_MAX


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(("depth", "is_good"), [(28, True), (29, False), (1000, False)])
def test_json_is_at_most_30_deep(depth: int, is_good: bool) -> None:
    """The document and `initialState` are two of the 30."""
    found = examine({"name": "deep", "initialState": {"a": nested(depth)}}).faults
    assert [fault.reason for fault in found] == ([] if is_good else ["TOO_DEEP"])


@pytest.mark.parametrize(("count", "is_good"), [(2_000, True), (2_001, False)])
def test_definition_has_at_most_2000_nodes(count: int, is_good: bool) -> None:
    nodes = [{"id": f"n{number}", "module": "noop@1"} for number in range(count)]
    found = faults({"name": "many", "nodes": nodes})
    assert found == (set() if is_good else {("nodes", "TOO_MANY_NODES")})


@pytest.mark.parametrize(("extra", "is_good"), [(0, True), (1, False)])
def test_definition_has_at_most_a_mebibyte(extra: int, is_good: bool) -> None:
    empty = len(examine({"name": "x", "initialState": {"a": ""}}).canonical)
    text = "x" * (1024 * 1024 - empty + extra)
    found = faults({"name": "x", "initialState": {"a": text}})
    assert found == (set() if is_good else {("", "TOO_LARGE")})


def test_chain_of_2000_nodes_that_see_all_before_is_good() -> None:
    nodes = [{"id": f"n{number}", "module": "noop@1"} for number in range(2_000)]
    nodes[-1]["inputs"] = {"first": "{{ nodes.n0.output }}"}  # type: ignore[assignment]
    edges = [{"from": f"n{number}", "to": f"n{number + 1}"} for number in range(1_999)]
    assert faults({"name": "chain", "nodes": nodes, "edges": edges}) == set()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
PATHS = sorted({at for at, *_ in CORPUS})


@given(at=st.sampled_from(PATHS), value=json_values)
def test_anything_anywhere_is_judged_and_never_breaks(at: str, value: Any) -> None:
    """The verdict has faults with a reason, or a canonical form that reads back."""
    document = good()
    put(document, at, value)
    verdict = examine(document)
    assert all(fault.reason and fault.message for fault in verdict.faults)
    if not verdict.faults:
        assert json.loads(verdict.canonical) == document


@given(json_values)
def test_any_json_is_judged(document: Any) -> None:
    examine(document)
