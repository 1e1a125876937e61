"""The shape of a graph: which nodes come before which, and which nodes form a circle.

Everything is linear in nodes and edges, except `ancestors`: it keeps one integer per node as a set of bits, so 2,000
nodes cost 2,000 integers of 250 bytes and one union per edge.
"""

from collections.abc import Mapping, Sequence

Edges = Sequence[tuple[int, int]]


def cycles(count: int, edges: Edges) -> list[list[int]]:
    """One circle from each strongly connected part with more than one node, in the order of its edges."""
    after = _successors(count, edges)
    return [_circle(part, after) for part in _strong_parts(count, after) if len(part) > 1]


def ancestors(count: int, edges: Edges) -> list[int]:
    """For each node the set of nodes before it, as bits. A node on a circle comes before itself."""
    after = _successors(count, edges)
    before = [0] * count
    # Tarjan finds the last part first. Within a circle every node is before every other.
    for part in reversed(_strong_parts(count, after)):
        union = 0
        for node in part:
            union |= before[node]
        if len(part) > 1:
            for node in part:
                union |= 1 << node
        for node in part:
            before[node] = union
            for successor in after[node]:
                if successor not in part:
                    before[successor] |= union | 1 << node
    return before


def _successors(count: int, edges: Edges) -> Sequence[list[int]]:
    after: list[list[int]] = [[] for _ in range(count)]
    for start, end in edges:
        if start != end:  # a self edge is a fault of its own
            after[start].append(end)
    return after


def _strong_parts(count: int, after: Sequence[Sequence[int]]) -> list[set[int]]:
    """Tarjan's strongly connected parts. Without recursion, as a chain of 2,000 nodes would exceed its limit."""
    index: dict[int, int] = {}
    low = [0] * count
    stack: list[int] = []
    on_stack = [False] * count
    parts: list[set[int]] = []
    for root in range(count):
        if root in index:
            continue
        work = [(root, iter(after[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack[root] = True
        while work:
            node, successors = work[-1]
            descended = False
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack[successor] = True
                    work.append((successor, iter(after[successor])))
                    descended = True
                    break
                if on_stack[successor]:
                    low[node] = min(low[node], index[successor])
            if descended:
                continue
            work.pop()
            if work:
                parent = work[-1][0]
                low[parent] = min(low[parent], low[node])
            if low[node] == index[node]:
                parts.append(_popped_to(node, stack, on_stack))
    return parts


def _popped_to(node: int, stack: list[int], on_stack: list[bool]) -> set[int]:
    part: set[int] = set()
    while True:
        top = stack.pop()
        on_stack[top] = False
        part.add(top)
        if top == node:
            return part


def _circle(part: set[int], after: Sequence[Sequence[int]]) -> list[int]:
    """A shortest circle through the first node of the part."""
    start = min(part)
    came_from: Mapping[int, int] = _breadth_first(start, part, after)
    circle = [start]
    node = came_from[start]
    while node != start:
        circle.append(node)
        node = came_from[node]
    circle.append(start)
    return circle[::-1]


def _breadth_first(start: int, part: set[int], after: Sequence[Sequence[int]]) -> dict[int, int]:
    """The node from which each node of the part was first reached; `start` itself is reached last."""
    came_from: dict[int, int] = {}
    ring = [start]
    while start not in came_from:
        outer: list[int] = []
        for node in ring:
            for successor in after[node]:
                if successor in part and successor not in came_from:
                    came_from[successor] = node
                    outer.append(successor)
        ring = outer
    return came_from
