"""The faults of nodes that set keys of the workflow's state."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from windlass.definition.faults import Fault, child
from windlass.definition.limits import STATE_KEY_FORM, STATE_KEYS_MAX
from windlass.definition.modules import STATE_SETTER

_IS_KEY: Final = re.compile(STATE_KEY_FORM).fullmatch


def state_faults(nodes: Sequence[Any]) -> Iterator[Fault]:
    """Which keys a node sets is known when the definition is applied: templates make values, and no keys."""
    keys: set[str] = set()
    for place, node in enumerate(nodes):
        if not isinstance(node, dict) or node.get("module") != STATE_SETTER:
            continue
        path, inputs = f"nodes[{place}].inputs", node.get("inputs") or {}
        if not inputs:
            yield Fault(path, "REQUIRED", f"must be set: {STATE_SETTER} sets the keys of its inputs")
        elif isinstance(inputs, dict):
            keys |= inputs.keys()
            for key in inputs:
                if not _IS_KEY(key):
                    yield Fault(child(path, key), "MALFORMED_KEY", f"a key of the state has the form {STATE_KEY_FORM}")
    if len(keys) > STATE_KEYS_MAX:
        yield Fault("nodes", "TOO_MANY_KEYS", f"the nodes set {len(keys)} keys of the state; at most {STATE_KEYS_MAX}")
