"""Finds, when a version is compiled, from where each node has the workflow's state.

`state.set@1` sets keys of the state. A node sees the initial state and what the nodes before it have set, so its state
is a function of its ancestors and not of the time. Almost every node has the state of the node before it. So the state
is made only at its origins: at a node that sets keys, and at a node where branches with different states meet. Every
other node names the one origin whose state it shares (`Node.state_from`). Without state.set@1 there is no origin, and
none of this costs anything.

A node with `join: ANY` begins on one path while others may be under way. It has the state of the path that it began
on, whatever the others set.
"""

from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

from services.coordinator.core.definition import OUTPUT_NODE, Setter
from windlass.definition.modules import STATE_SETTER

# The origin of the initial state.
INITIAL = ""


class StatePaths(NamedTuple):
    # Of each node that does not have the initial state: its origins. More than one: the node is an origin itself.
    origins: Mapping[str, tuple[str, ...]]
    # The origin of the state after each node. INITIAL: it is still the initial state.
    after: Mapping[str, str]
    setters: Mapping[str, Setter]


NO_PATHS = StatePaths({}, {}, {})


def state_paths(items: Sequence[Mapping[str, Any]], sources: Mapping[str, Sequence[str]]) -> StatePaths:
    """`sources`: the nodes from which edges lead to each node."""
    modules = {item["id"]: item["module"] for item in items}
    if STATE_SETTER not in modules.values():
        return NO_PATHS
    joins_any = {item["id"] for item in items if item.get("join") == "ANY"}
    targets = {source for each in sources.values() for source in each}
    leaves = [node_id for node_id in sources if node_id not in targets]
    origins: dict[str, tuple[str, ...]] = {}
    after: dict[str, str] = {}
    # The setters before each node, as bits.
    before: dict[str, int] = {}
    setters: dict[str, Setter] = {}
    for node_id in [*TopologicalSorter(sources).static_order(), OUTPUT_NODE]:
        from_nodes = leaves if node_id == OUTPUT_NODE else sources[node_id]
        found = _distinct([after[source] for source in from_nodes], is_any=node_id in joins_any)
        if found:
            origins[node_id] = found
        before[node_id] = 0
        for source in from_nodes:
            before[node_id] |= before[source] | (setters[source].bit if source in setters else 0)
        is_setter = modules.get(node_id) == STATE_SETTER
        if is_setter:
            setters[node_id] = Setter(1 << len(setters), before[node_id])
        after[node_id] = node_id if is_setter or len(found) > 1 else found[0] if found else INITIAL
    return StatePaths(origins, after, setters)


def _distinct(origins: Sequence[str], *, is_any: bool) -> tuple[str, ...]:
    """Each origin once. The initial state adds nothing to another, but a node that begins on any path may have it."""
    found = dict.fromkeys(origins)
    if not is_any or len(found) == 1:
        found.pop(INITIAL, None)
    return tuple(found)
