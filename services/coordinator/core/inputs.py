"""What a run's templates see of the nodes before it, and how much of that a runner is handed.

Hazards: a grant is one message. What no message can carry would be granted, lost and granted again for ever, and take
along what goes the same way.
"""

from services.coordinator.core.definition import Node
from services.coordinator.core.state import Execution
from services.coordinator.core.values import INLINE_BYTES_MAX, OutputRef, Value

# Half of what a runner receives in one message. An output that is kept outside counts with its name alone.
INPUTS_BYTES_MAX = 32 * 1024 * 1024


def seen_outputs(execution: Execution, node: Node) -> list[tuple[str, Value]]:
    """Of the referenced nodes that have one: where a branch was not taken there is none, and a template that asks for
    it all the same fails in the runner."""
    works = (execution.works[index] for index in node.references)
    return [(work.node.id, work.output) for work in works if work.output is not None]


def excess(execution: Execution, node: Node) -> int:
    """How many bytes the outputs that it sees have, when they are too many; otherwise 0."""
    if len(node.references) * INLINE_BYTES_MAX <= INPUTS_BYTES_MAX:
        # So it is with almost all nodes, and nothing is counted.
        return 0
    size = sum(_size(value) for _, value in seen_outputs(execution, node))
    return size if size > INPUTS_BYTES_MAX else 0


def _size(value: Value) -> int:
    return len(value.key) + len(value.sha256) if isinstance(value, OutputRef) else len(value)
