"""The document of a version is compiled to the definition that the core walks."""

import pytest

from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.definition import OUTPUT_NODE, Edge, JoinRule, When
from services.coordinator.core.retry import RetryOverrides
from services.coordinator.core.values import BrokenInvariant
from tests.support.story import chain, edge, node

SECOND = 1_000_000


def compiled(*nodes, edges=(), references=None, **more):
    document = {"name": "w", "nodes": list(nodes), "edges": list(edges), **more}
    return compile_definition(document, references or {})


def test_all_that_a_node_may_say_is_compiled():
    definition = compiled(
        node(
            "fetch",
            "http.request@1",
            config={"url": "x"},
            timeout="30s",
            retry={"attempts": 5},
            idempotent=True,
            join="ANY",
            runnerLabels={"gpu": "true", "disk": "big"},
        ),
        retry={"attempts": 2, "initialDelay": "2s", "factor": 3, "maxDelay": "60s", "budget": "1h"},
        timeout="3600s",
        onFailure="FAIL_FAST",
        initialState={"region": "eu"},
    )
    fetch = definition.nodes["fetch"]
    assert (fetch.id, fetch.module, fetch.config, fetch.inputs) == ("fetch", "http.request@1", b'{"url":"x"}', b"{}")
    assert (fetch.timeout, fetch.is_idempotent, fetch.join) == (30 * SECOND, True, JoinRule.ANY)
    assert fetch.runner_labels == (("disk", "big"), ("gpu", "true"))
    assert fetch.retry == RetryOverrides(5, 2 * SECOND, 3.0, 60 * SECOND, 3600 * SECOND)
    assert fetch.runner_module == "http.request@1"
    assert (definition.timeout, definition.is_fail_fast) == (3600 * SECOND, True)
    assert definition.initial_state == b'{"region":"eu"}'


def test_node_that_says_nothing_has_the_defaults():
    definition = compiled(node("a"))
    a = definition.nodes["a"]
    assert (a.timeout, a.is_idempotent, a.join, a.retry) == (0, False, JoinRule.ALL, RetryOverrides())
    assert (a.needs_runner, a.has_templates, a.is_failure_handled) == (True, False, False)
    assert (definition.timeout, definition.is_fail_fast, definition.output_node) == (0, False, None)


def test_edges_stand_with_their_source():
    definition = compiled(
        node("a"),
        node("b"),
        node("c"),
        node("d"),
        edges=[edge("a", "b"), edge("a", "c", "failure"), edge("b", "d", "always"), edge("c", "d", "left")],
    )
    a, b, c, d = definition.graph
    assert a.edges == (Edge("b", When.SUCCESS, ""), Edge("c", When.FAILURE, ""))
    assert (b.edges, c.edges) == ((Edge("d", When.ALWAYS, ""),), (Edge("d", When.LABEL, "left"),))
    assert [x.in_degree for x in definition.graph] == [0, 1, 1, 2]
    assert (definition.roots, definition.leaves) == (("a",), ("d",))
    assert (a.is_failure_handled, b.is_failure_handled, d.edges) == (True, False, ())


def test_control_nodes_need_a_runner_only_to_render_their_config():
    definition = compiled(
        node("j", "join@1", config={"x": "{{ input }}"}),
        node("s", "sleep@1", config={"duration": "5s"}),
        node("t", "sleep@1", config={"duration": "{{ input.wait }}"}),
        node("a"),
    )
    seen = [(x.is_control, x.needs_runner, x.runner_module, x.is_idempotent) for x in definition.graph]
    assert seen == [
        (True, False, "transform@1", True),
        (True, False, "transform@1", True),
        (True, True, "transform@1", True),
        (False, True, "noop@1", False),
    ]


def test_nodes_see_the_references_that_were_found_when_the_version_was_applied():
    text = {"x": "nodes.a without a template, {{ input }}"}
    definition = compiled(
        node("a"),
        node("b", inputs=text),
        node("c", inputs=text),
        node("d", inputs=text),
        node("e", inputs={"x": "nodes.a"}),
        edges=[*chain("a", "b", "c"), *chain("a", "d")],
        references={"c": None, "d": ["a"], "e": ["a"], "$output": ["b", "c"]},
        output={"x": "{{ nodes }}"},
    )
    assert [x.references for x in definition.nodes.values()] == [(), (), ("a", "b"), ("a",), (), ("b", "c")]
    assert list(definition.nodes)[-1] == OUTPUT_NODE
    assert [x.id for x in definition.graph] == list("abcde")
    assert definition.nodes["b"].has_templates


def test_nodes_that_a_computed_name_may_mean_stand_in_the_order_of_the_document():
    ids = [f"n{number}" for number in range(40)]
    definition = compiled(
        *map(node, ids),
        node("z", inputs="{{ nodes }}"),
        edges=[*chain(*reversed(ids), "z"), edge("n39", "z")],
        references={"z": None},
    )
    assert definition.nodes["z"].references == tuple(ids)


def test_output_that_computes_a_name_sees_all_nodes():
    definition = compiled(node("a"), node("b"), output="{{ nodes }}", references={"$output": None})
    assert definition.output_node.references == ("a", "b")


@pytest.mark.parametrize(
    "document",
    [
        {"nodes": [{"module": "noop@1"}]},
        {"nodes": [{"id": "a"}]},
        {"nodes": [node("a"), node("a")]},
        {"nodes": [node("a")], "edges": [edge("a", "ghost")]},
        {"nodes": [node("a", timeout="soon")]},
        {"nodes": [node("a", join="SOME")]},
        {"nodes": 5},
    ],
)
def test_a_broken_stored_definition_is_a_broken_invariant(document):
    with pytest.raises(BrokenInvariant):
        compile_definition(document)
