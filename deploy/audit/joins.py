"""Decides whether a node was allowed to start, by the definition and by how the nodes before it ended.

`core/graph.py` decides the same. The rule is written a second time here, in another form, so that both are not wrong
for the same reason.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final

from services.coordinator.core.definition import Definition, Edge, JoinRule, When


class End(StrEnum):
    """How a node ended."""

    SUCCEEDED = auto()
    FAILED = auto()
    SKIPPED = auto()
    BLOCKED = auto()


_TAKEN_AFTER: Final = {
    When.SUCCESS: {End.SUCCEEDED},
    When.FAILURE: {End.FAILED},
    When.ALWAYS: {End.SUCCEEDED, End.FAILED, End.BLOCKED},
}


class Joins:
    def __init__(self, definition: Definition) -> None:
        nodes = definition.nodes.values()
        self._wants_all = {node.id: node.join is JoinRule.ALL for node in nodes}
        # The edges to each node, with their sources.
        self._incoming: dict[str, list[tuple[str, Edge]]] = {node.id: [] for node in nodes}
        for node in nodes:
            for edge in node.edges:
                self._incoming[edge.target].append((node.id, edge))
        # The end of each node, and the branch that it took.
        self._ended: dict[str, tuple[End, str]] = {}

    def ended(self, node: str, how: End, branch: str = "") -> None:
        self._ended[node] = how, branch

    def reopened(self, node: str) -> None:
        """It has no end any more."""
        self._ended.pop(node, None)

    def has_sources(self, node: str) -> bool:
        return bool(self._incoming[node])

    def holds(self, node: str) -> bool:
        """One edge was taken; and if the node waits for all edges, every source has ended."""
        incoming = self._incoming[node]
        is_taken = any(self._is_taken(source, edge) for source, edge in incoming)
        return is_taken and (not self._wants_all[node] or all(source in self._ended for source, _ in incoming))

    def _is_taken(self, source: str, edge: Edge) -> bool:
        if source not in self._ended:
            return False
        if edge.when is When.LABEL:  # it is taken by the branch of that name
            return self._ended[source] == (End.SUCCEEDED, edge.label)
        return self._ended[source][0] in _TAKEN_AFTER[edge.when]

    def shown(self, node: str) -> str:
        sources = {source: self._ended.get(source) for source, _ in self._incoming[node]}
        return f"{node} started after {sources}"
