"""The shape of a graph: which nodes come before which, and which nodes form a cycle.

Everything is linear in nodes and edges, except `ancestors`: it keeps one integer per node as a set of bits, so 2,000
nodes cost 2,000 integers of 250 bytes and one union per edge. No function is recursive, because a chain of 2,000 nodes
would exceed Python's recursion limit.
"""

from collections import deque
from collections.abc import Iterable, Sequence

Edges = Sequence[tuple[int, int]]


def cycles(count: int, edges: Edges) -> list[list[int]]:
    """One cycle from each strongly connected component with more than one node, in the order of its edges. The first
    node is repeated at the end.
    """
    after = _successors(count, edges)
    return [_cycle_through(component, after) for component in _components(count, edges) if len(component) > 1]


def ancestors(count: int, edges: Edges) -> list[int]:
    """For each node the set of nodes before it, as bits. A node on a cycle comes before itself."""
    after = _successors(count, edges)
    before = [0] * count
    for component in _components(count, edges):
        union = 0
        for node in component:
            union |= before[node]
        if len(component) > 1:  # within a component every node comes before every other
            for node in component:
                union |= 1 << node
        for node in component:
            before[node] = union
            for successor in after[node]:
                if successor not in component:
                    before[successor] |= union | 1 << node
    return before


def _successors(count: int, edges: Iterable[tuple[int, int]]) -> Sequence[list[int]]:
    after: list[list[int]] = [[] for _ in range(count)]
    for start, end in edges:
        if start != end:  # an edge from a node to itself is reported as a fault of its own
            after[start].append(end)
    return after


def _components(count: int, edges: Edges) -> list[set[int]]:
    """The strongly connected components, by Kosaraju's algorithm. A component comes before those that its edges lead
    to.
    """
    before = _successors(count, ((end, start) for start, end in edges))
    components: list[set[int]] = []
    placed: set[int] = set()
    for root in reversed(_finished(_successors(count, edges))):
        component: set[int] = set()
        work = [root]
        while work:
            node = work.pop()
            if node not in placed:
                placed.add(node)
                component.add(node)
                work.extend(before[node])
        if component:
            components.append(component)
    return components


def _finished(after: Sequence[Sequence[int]]) -> list[int]:
    """All nodes in the order in which a depth-first search finishes them."""
    finished: list[int] = []
    seen: set[int] = set()
    work = list(range(len(after)))
    while work:
        node = work.pop()
        if node < 0:
            finished.append(~node)
        elif node not in seen:
            seen.add(node)
            work.append(~node)  # popped again when everything after the node is finished
            work.extend(after[node])
    return finished


def _cycle_through(component: set[int], after: Sequence[Sequence[int]]) -> list[int]:
    """A shortest cycle through the first node of the component."""
    start = min(component)
    came_from: dict[int, int] = {}
    ahead = deque([start])
    while start not in came_from:
        node = ahead.popleft()
        for successor in after[node]:
            if successor in component and successor not in came_from:
                came_from[successor] = node
                ahead.append(successor)
    cycle = [start, came_from[start]]
    while cycle[-1] != start:
        cycle.append(came_from[cycle[-1]])
    return cycle[::-1]
