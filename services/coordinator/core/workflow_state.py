"""The state that a node sees: what the nodes before it have set, laid over the initial state.

Where branches meet (`state_paths.py`), their states are merged. A key that one branch has set after the other has its
later value. If two nodes of which none comes before the other have set a key to different values, the node where they
meet fails with STATE_CONFLICT. What stands behind its failure sees the value of the branch that the document names
first.

Hazard: the state of each origin is kept once it was asked for. It never changes, because all work that it is made of
has ended by then; work that is done again has another key, and so have the origins after it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from services.coordinator.core.definition import Node
from services.coordinator.core.state import Conflict, Execution, Setting, Settings, WorkState
from services.coordinator.core.state_paths import INITIAL

# The size of the JSON of one key. With the keys of one definition (STATE_KEYS_MAX), the state that nodes set has at
# most 1 MiB, which is its part of a grant.
STATE_VALUE_BYTES_MAX = 16 * 1024


def seen_state(execution: Execution, node: Node) -> bytes:
    """The state that the templates of the node see, as a JSON object."""
    if node.undoes:
        # A compensation sees what its node saw.
        node = execution.definition.nodes[node.undoes]
    initial = execution.definition.initial_state
    settings = _seen(execution, node)[0] if node.state_from else None
    if not settings:
        return initial
    return orjson.dumps(orjson.loads(initial) | {key: orjson.Fragment(each.value) for key, each in settings.items()})


def state_conflict(execution: Execution, node: Node) -> str:
    """Says which nodes before this one have set a key to different values; "" if none have."""
    conflict = _seen(execution, node)[1] if len(node.state_from) > 1 else None
    if conflict is None:
        return ""
    first, second = conflict.nodes
    return f"{first} and {second}, none of which comes before the other, set state.{conflict.key} to different values"


def settings_of(node_id: str, inputs: Mapping[str, Any]) -> Settings:
    """A node whose rendered inputs are these sets this."""
    return {key: Setting(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), node_id) for key, value in inputs.items()}


def _seen(execution: Execution, node: Node) -> tuple[Settings, Conflict | None]:
    origins = _origins(execution, node)
    for origin in origins:
        _make(execution, origin)
    return _merged(execution, origins)


def _origins(execution: Execution, node: Node) -> Sequence[str]:
    """The origins whose states the node merges."""
    if node.begins_on_one_path:
        begun_by = execution.target_of(node.id).begun_by
        if begun_by is not None:
            after = execution.definition.nodes[begun_by].state_after
            return () if after == INITIAL else (after,)
    return [origin for origin in node.state_from if origin != INITIAL]


def _make(execution: Execution, origin: str) -> None:
    """Make the state of an origin, and first those that it depends on. A chain of them may be as long as a workflow."""
    views = execution.state_views
    todo = [origin]
    while todo:
        node = execution.definition.nodes[todo[-1]]
        key = execution.target_of(node.id).key
        missing = [each for each in _origins(execution, node) if execution.target_of(each).key not in views]
        if missing and key not in views:
            todo += missing
            continue
        if key not in views:
            views[key] = _after(execution, node)
        todo.pop()


def _after(execution: Execution, node: Node) -> Settings:
    """The state after the node."""
    settings, _ = _merged(execution, _origins(execution, node))
    work = execution.target_of(node.id)
    if node.id not in execution.definition.setters or work.state is not WorkState.SUCCEEDED:
        return settings
    assert isinstance(work.output, bytes), "state.set@1 has checked its size"
    return {**settings, **settings_of(node.id, orjson.loads(work.output))}


def _merged(execution: Execution, origins: Sequence[str]) -> tuple[Settings, Conflict | None]:
    """The state of all these origins together, and the first key for which they do not agree."""
    views = [execution.state_views[execution.target_of(origin).key] for origin in origins]
    if len(views) < 2:
        return views[0] if views else {}, None
    found: dict[str, dict[str, Setting]] = {}
    for view in views:
        for key, setting in view.items():
            found.setdefault(key, {})[setting.node] = setting
    merged: dict[str, Setting] = {}
    conflict: Conflict | None = None
    for key, by_node in found.items():
        newest = _newest(execution, list(by_node.values()))
        merged[key] = newest[0]
        other = next((each for each in newest if each.value != newest[0].value), None)
        if other is not None and conflict is None:
            conflict = Conflict(key, (newest[0].node, other.node))
    return merged, conflict


def _newest(execution: Execution, settings: Sequence[Setting]) -> Sequence[Setting]:
    """The settings that no other one comes after."""
    if len(settings) == 1:
        return settings
    setters = execution.definition.setters
    overridden = 0
    for each in settings:
        overridden |= setters[each.node].before
    return [each for each in settings if not setters[each.node].bit & overridden]
