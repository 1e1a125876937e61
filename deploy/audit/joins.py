"""Decides whether a node was allowed to start, by the definition and by how the nodes before it ended.

`core/graph.py` decides the same. The rule is written a second time here, in another form, so that both are not wrong
for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from services.coordinator.core.definition import Definition, Join, When

_SUCCEEDED: Final = "succeeded"
_FAILED: Final = "failed"
_SKIPPED: Final = "skipped"
_BLOCKED: Final = "blocked"
# An edge with a label is taken by the branch of that name.
_TAKEN_AFTER: Final = {
    When.SUCCESS: {_SUCCEEDED},
    When.FAILURE: {_FAILED},
    When.ALWAYS: {_SUCCEEDED, _FAILED, _BLOCKED},
    When.LABEL: set[str](),
}


class _Ended(NamedTuple):
    how: str
    branch: str = ""


class _Incoming(NamedTuple):
    source: str
    when: When
    label: str


class Joins:
    def __init__(self, definition: Definition) -> None:
        nodes = definition.nodes.values()
        self._wants_all = {node.id: node.join is Join.ALL for node in nodes}
        self._incoming: dict[str, list[_Incoming]] = {node.id: [] for node in nodes}
        for node in nodes:
            for edge in node.edges:
                self._incoming[edge.target].append(_Incoming(node.id, edge.when, edge.label))
        self._ended: dict[str, _Ended] = {}

    def succeeded(self, node: str, branch: str) -> None:
        self._ended[node] = _Ended(_SUCCEEDED, branch)

    def failed(self, node: str) -> None:
        self._ended[node] = _Ended(_FAILED)

    def skipped(self, nodes: Iterable[str]) -> None:
        self._ended.update(dict.fromkeys(nodes, _Ended(_SKIPPED)))

    def blocked(self, nodes: Iterable[str]) -> None:
        self._ended.update(dict.fromkeys(nodes, _Ended(_BLOCKED)))

    def has_sources(self, node: str) -> bool:
        return bool(self._incoming[node])

    def holds(self, node: str) -> bool:
        """One edge was taken; and if the node waits for all edges, every source has ended."""
        incoming = self._incoming[node]
        is_resolved = all(each.source in self._ended for each in incoming)
        return any(map(self._is_taken, incoming)) and (is_resolved or not self._wants_all[node])

    def _is_taken(self, edge: _Incoming) -> bool:
        ended = self._ended.get(edge.source)
        if ended is None:
            return False
        is_branch = edge.when is When.LABEL and ended == _Ended(_SUCCEEDED, edge.label)
        return is_branch or ended.how in _TAKEN_AFTER[edge.when]

    def shown(self, node: str) -> str:
        sources = {each.source: self._ended.get(each.source) for each in self._incoming[node]}
        return f"{node} started after {sources}"
