"""Cycles and ancestors are those that a slow and obvious search finds."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from windlass.definition.graph import ancestors, cycles

graphs = st.integers(1, 8).flatmap(
    lambda count: st.tuples(
        st.just(count), st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=20)
    )
)


def reachable(count: int, edges: list[tuple[int, int]], start: int) -> set[int]:
    """The nodes that one edge or more lead to. An edge to itself does not count."""
    found: set[int] = set()
    todo = [start]
    while todo:
        here = todo.pop()
        for source, target in edges:
            if source == here and source != target and target not in found:
                found.add(target)
                todo.append(target)
    return found


@given(graphs)
def test_ancestors_are_those_from_whom_a_node_can_be_reached(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = graph
    before = ancestors(count, edges)
    for node in range(count):
        expected = {other for other in range(count) if node in reachable(count, edges, other)}
        assert {other for other in range(count) if before[node] >> other & 1} == expected


@given(graphs)
def test_each_cycle_is_one_and_every_node_on_a_cycle_is_in_its_component(
    graph: tuple[int, list[tuple[int, int]]],
) -> None:
    count, edges = graph
    found = cycles(count, edges)
    for cycle in found:
        assert cycle[0] == cycle[-1]
        assert len(set(cycle)) == len(cycle) - 1 > 1
        assert all(step in edges for step in pairwise(cycle))
    on_a_cycle = {node for node in range(count) if node in reachable(count, edges, node)}
    components = {
        frozenset(o for o in on_a_cycle if o in reachable(count, edges, n) and n in reachable(count, edges, o))
        for n in on_a_cycle
    }
    assert len(found) == len(components)


def test_long_chain_and_long_cycle_need_no_recursion() -> None:
    chain = [(node, node + 1) for node in range(4_999)]
    assert cycles(5_000, chain) == []
    assert len(cycles(5_000, [*chain, (4_999, 0)])[0]) == 5_001
