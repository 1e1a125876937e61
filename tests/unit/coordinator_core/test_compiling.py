"""From the document of a version to what the core walks."""

import pytest

from services.coordinator.core import BrokenInvariant, compile_definition
from services.coordinator.core.definition import Control, Edge, Join, Sleep, When
from services.coordinator.core.retry import RetryOverrides
from services.coordinator.core.values import INSTANT_MAX
from tests.support.story import chain, edge, node

SECOND = 1_000_000


def compiled(*nodes, edges=(), references=None, **more):
    return compile_definition({"name": "w", "nodes": list(nodes), "edges": list(edges), **more}, references)


def test_everything_a_node_may_say():
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
    fetch = definition.nodes[0]
    assert (fetch.id, fetch.module, fetch.config, fetch.inputs) == (
        "fetch",
        "http.request@1",
        b'{"url":"x"}',
        b"{}",
    )
    assert (fetch.timeout, fetch.is_idempotent, fetch.join) == (30 * SECOND, True, Join.ANY)
    assert fetch.runner_labels == (("disk", "big"), ("gpu", "true"))
    assert fetch.retry == RetryOverrides(5, 2 * SECOND, 3.0, 60 * SECOND, 3600 * SECOND)
    assert fetch.runner_module == "http.request@1"
    assert (definition.timeout, definition.is_fail_fast) == (3600 * SECOND, True)
    assert definition.initial_state == b'{"region":"eu"}'


def test_defaults():
    definition = compiled(node("a"))
    a = definition.nodes[0]
    assert (a.timeout, a.is_idempotent, a.join, a.retry) == (0, False, Join.ALL, RetryOverrides())
    assert (a.needs_runner, a.has_templates, a.is_failure_handled) == (True, False, False)
    assert (definition.timeout, definition.is_fail_fast, definition.output_node) == (0, False, None)


def test_edges_become_numbers():
    definition = compiled(
        node("a"),
        node("b"),
        node("c"),
        node("d"),
        edges=[edge("a", "b"), edge("a", "c", "failure"), edge("b", "d", "always"), edge("c", "d", "left")],
    )
    a, b, c, d = definition.nodes
    assert a.edges == (Edge(1, When.SUCCESS, ""), Edge(2, When.FAILURE, ""))
    assert (b.edges, c.edges) == ((Edge(3, When.ALWAYS, ""),), (Edge(3, When.LABEL, "left"),))
    assert [x.in_degree for x in definition.nodes] == [0, 1, 1, 2]
    assert (definition.roots, definition.leaves) == ((0,), (3,))
    assert (a.is_failure_handled, b.is_failure_handled, d.edges) == (True, False, ())


def test_control_nodes():
    definition = compiled(
        node("j", "join@1", config={"x": "{{ input }}"}),
        node("s", "sleep@1", config={"duration": "5s"}),
        node("u", "sleep@1", config={"until": "1970-01-01T00:00:09Z"}),
        node("t", "sleep@1", config={"duration": "{{ input.wait }}"}),
        node("last", "sleep@1", config={"until": "9999-12-31T23:59:59-01:00"}),
    )
    j, s, u, t, last = definition.nodes
    assert last.sleep == Sleep(until=INSTANT_MAX), "it was stored while that was taken"
    assert (j.control, j.needs_runner) == (Control.JOIN, False)
    assert (s.sleep, u.sleep, t.sleep) == (Sleep(span=5 * SECOND), Sleep(until=9 * SECOND), None)
    assert (s.needs_runner, t.needs_runner, t.runner_module, t.is_idempotent) == (
        False,
        True,
        "transform@1",
        True,
    )


def test_templates_name_the_nodes_they_see():
    definition = compiled(
        node("a"),
        node("b"),
        node("c", inputs={"x": "{{ nodes.a.output.id }}", "y": "{{ nodes['b'].output }}"}),
        node("d", inputs={"x": "{{ nodes[input.which].output }}"}),
        node("e", config={"x": '{{ nodes["a"].output }}'}),
        node("f", config={"x": "nodes.a without a template"}),
        node("g", inputs={"x": "{% if input %}1{% endif %}"}),
        edges=[*chain("a", "c", "d"), *chain("b", "c"), *chain("a", "e")],
        output={"x": "{{ nodes.c.output }} {{ nodes.unknown.output }}"},
    )
    references = {x.id: [definition.nodes[i].id for i in x.references] for x in definition.nodes}
    assert references == {
        "a": [], "b": [], "c": ["a", "b"], "d": ["a", "b", "c"], "e": ["a"], "f": [], "g": [], "$output": ["c"],
    }  # fmt: skip
    assert definition.output_node is definition.nodes[-1]
    assert definition.index["$output"] == 7
    assert definition.nodes[6].has_templates


def test_output_that_computes_a_name_sees_all_nodes():
    definition = compiled(node("a"), node("b"), output="{{ nodes }}")
    assert definition.output_node.references == (0, 1)


def test_given_references_win():
    given = {"b": ["a"], "$output": ["b"]}
    definition = compiled(
        node("a"),
        node("b", inputs={"x": "{{ input }}"}),
        node("c", inputs={"x": "{{ nodes.a }}"}),
        references=given,
        output={"x": "{{ input }}"},
    )
    assert [x.references for x in definition.nodes] == [(), (0,), (), (1,)]


@pytest.mark.parametrize(
    "document",
    [
        {"nodes": [{"module": "noop@1"}]},
        {"nodes": [{"id": "a"}]},
        {"nodes": [node("a"), node("a")]},
        {"nodes": [node("a"), node("b")], "edges": [*chain("a", "b", "a")]},
        {"nodes": [node("a")], "edges": [edge("a", "ghost")]},
        {"nodes": [node("a", timeout="soon")]},
        {"nodes": [node("a", join="SOME")]},
        {"nodes": [node("a", "sleep@1", config={})]},
        {"nodes": [node("a", "sleep@1", config={"duration": "1s", "until": "1970-01-01T00:00:00Z"})]},
        {"nodes": 5},
    ],
)
def test_a_broken_stored_definition_is_a_broken_invariant(document):
    with pytest.raises(BrokenInvariant):
        compile_definition(document)
