"""The shape of a graph: which nodes come before which, and which nodes form a circle.

Everything is linear in nodes and edges, except `ancestors`: it keeps one integer per node as a set of bits, so 2,000
nodes cost 2,000 integers of 250 bytes and one union per edge. Nothing recurses: a chain of 2,000 nodes is too deep.
"""

from collections import deque
from collections.abc import Iterable, Sequence

Edges = Sequence[tuple[int, int]]


def cycles(count: int, edges: Edges) -> list[list[int]]:
    """One circle from each strongly connected part with more than one node, in the order of its edges."""
    after = _successors(count, edges)
    return [_circle(part, after) for part in _strong_parts(count, edges) if len(part) > 1]


def ancestors(count: int, edges: Edges) -> list[int]:
    """For each node the set of nodes before it, as bits. A node on a circle comes before itself."""
    after = _successors(count, edges)
    before = [0] * count
    for part in _strong_parts(count, edges):
        union = 0
        for node in part:
            union |= before[node]
        if len(part) > 1:  # within a circle every node is before every other
            for node in part:
                union |= 1 << node
        for node in part:
            before[node] = union
            for successor in after[node]:
                if successor not in part:
                    before[successor] |= union | 1 << node
    return before


def _successors(count: int, edges: Iterable[tuple[int, int]]) -> Sequence[list[int]]:
    after: list[list[int]] = [[] for _ in range(count)]
    for start, end in edges:
        if start != end:  # a self edge is a fault of its own
            after[start].append(end)
    return after


def _strong_parts(count: int, edges: Edges) -> list[set[int]]:
    """Kosaraju's strongly connected parts. A part comes before those that its edges lead to."""
    before = _successors(count, ((end, start) for start, end in edges))
    parts: list[set[int]] = []
    placed: set[int] = set()
    for root in reversed(_finished(_successors(count, edges))):
        part: set[int] = set()
        work = [root]
        while work:
            node = work.pop()
            if node not in placed:
                placed.add(node)
                part.add(node)
                work.extend(before[node])
        if part:
            parts.append(part)
    return parts


def _finished(after: Sequence[Sequence[int]]) -> list[int]:
    """All nodes in the order in which a search in depth has finished with them."""
    finished: list[int] = []
    seen: set[int] = set()
    work = list(range(len(after)))
    while work:
        node = work.pop()
        if node < 0:
            finished.append(~node)
        elif node not in seen:
            seen.add(node)
            work.append(~node)  # this comes up again when everything after the node is finished
            work.extend(after[node])
    return finished


def _circle(part: set[int], after: Sequence[Sequence[int]]) -> list[int]:
    """A shortest circle through the first node of the part."""
    start = min(part)
    came_from: dict[int, int] = {}
    ahead = deque([start])
    while start not in came_from:
        node = ahead.popleft()
        for successor in after[node]:
            if successor in part and successor not in came_from:
                came_from[successor] = node
                ahead.append(successor)
    circle = [start, came_from[start]]
    while circle[-1] != start:
        circle.append(came_from[circle[-1]])
    return circle[::-1]
