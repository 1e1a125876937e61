"""The outputs of earlier nodes that the templates of a node see, and how much of them a runner is given.

Hazard: a grant is one message. A grant that is too large for any message would be made, lost and made again for ever,
and would take along whatever goes out with it.
"""

from services.coordinator.core.definition import Node
from services.coordinator.core.state import Execution
from services.coordinator.core.values import INLINE_BYTES_MAX, OutputRef, Value

# Half of what a runner receives in one message. An output that is kept outside counts with its name alone.
INPUTS_BYTES_MAX = 32 * 1024 * 1024


def seen_outputs(execution: Execution, node: Node) -> list[tuple[str, Value]]:
    """The outputs of the referenced nodes that have one. A branch that was not taken has none, and a template that asks
    for it all the same fails in the runner."""
    if not node.references:
        return []
    works = (execution.current.get(node_id) for node_id in node.references)
    return [(work.node.id, work.output) for work in works if work is not None and work.output is not None]


def excess_bytes(execution: Execution, node: Node) -> int:
    """How many bytes the outputs that the node sees have, if they are too many; otherwise 0."""
    if len(node.references) * INLINE_BYTES_MAX <= INPUTS_BYTES_MAX:
        # Almost every node has so few references that nothing needs to be counted.
        return 0
    size_bytes = sum(_size_bytes(value) for _, value in seen_outputs(execution, node))
    return size_bytes if size_bytes > INPUTS_BYTES_MAX else 0


def _size_bytes(value: Value) -> int:
    return len(value.key) + len(value.sha256) if isinstance(value, OutputRef) else len(value)
