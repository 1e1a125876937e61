"""The output of an execution that names none: the outputs of its leaf nodes, by id.

Hazards: payloads are never parsed here, the JSON object is put together from their bytes. An output that is kept
outside is named by `{"$ref": key, "sha256": …, "size_bytes": …}`; when all together exceed the inline limit each is
named by the run that has it, `{"$run": run id}`, so that the result of a wide graph stays small.
"""

import json
from collections.abc import Mapping

from services.coordinator.core.state import Execution, WorkState
from services.coordinator.core.values import INLINE_BYTES_MAX, OutputRef, Value


def leaf_outputs(execution: Execution, fresh: Mapping[int, Value]) -> bytes:
    """`fresh` are outputs that were decided and not folded yet."""
    parts: list[tuple[int, str, bytes]] = []
    for leaf in execution.definition.leaves:
        work = execution.works[leaf]
        value = fresh.get(leaf)
        if value is None and work.state is WorkState.SUCCEEDED:
            value = work.output
        if value is not None:
            parts.append((leaf, work.node.id, _as_json(value)))
    if sum(len(part) for _, _, part in parts) > INLINE_BYTES_MAX:
        parts = [(leaf, node_id, _by_run(execution, leaf)) for leaf, node_id, _ in parts]
    return b"{" + b",".join(b'"%b":%b' % (node_id.encode(), part) for _, node_id, part in parts) + b"}"


def _as_json(value: Value) -> bytes:
    if isinstance(value, OutputRef):
        named = {"$ref": value.key, "sha256": value.sha256, "size_bytes": value.size_bytes}
        return json.dumps(named, separators=(",", ":")).encode()
    return value or b"null"


def _by_run(execution: Execution, leaf: int) -> bytes:
    work = execution.works[leaf]
    number = next((run.number for run in reversed(execution.runs) if run.work is work), 0)
    return b'{"$run":"%b.%d"}' % (execution.execution_id.encode(), number)
