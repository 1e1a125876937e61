"""The output of an execution whose workflow names none: the outputs of its leaf nodes, by id.

Hazard: payloads are never parsed here; the JSON object is put together from their bytes. An output that is kept outside
appears as `{"$ref": key, "sha256": …, "size_bytes": …}`. If all outputs together exceed the inline limit, each appears
as the run that has it, `{"$run": run id}`, so that the result of a wide graph stays small.
"""

import json

from services.coordinator.core.state import Execution, Work, WorkState
from services.coordinator.core.values import INLINE_BYTES_MAX, OutputRef, Value


def leaf_outputs(execution: Execution) -> bytes:
    leaves = [execution.current[node_id] for node_id in execution.definition.leaves]
    works = [work for work in leaves if work.state is WorkState.SUCCEEDED and work.output is not None]
    parts = [_as_json(work.output) for work in works if work.output is not None]
    if sum(map(len, parts)) > INLINE_BYTES_MAX:
        parts = [_by_run(execution, work) for work in works]
    named = (b'"%b":%b' % (work.node.id.encode(), part) for work, part in zip(works, parts, strict=True))
    return b"{" + b",".join(named) + b"}"


def _as_json(value: Value) -> bytes:
    if isinstance(value, OutputRef):
        named = {"$ref": value.key, "sha256": value.sha256, "size_bytes": value.size_bytes}
        return json.dumps(named, separators=(",", ":")).encode()
    return value or b"null"


def _by_run(execution: Execution, work: Work) -> bytes:
    number = 0 if work.run is None else work.run.number
    return b'{"$run":"%b.%d"}' % (execution.execution_id.encode(), number)
