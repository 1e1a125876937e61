"""Finds what the templates of a node see of earlier nodes, and how much of it a runner can be given.

Hazard: a grant is one message. A grant that is too large for any message would be made, lost and made again for ever,
and would take along whatever goes out with it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from services.coordinator.core.results import ERROR_MESSAGE_MAX
from services.coordinator.core.state import SETTLED, Execution, Work, WorkState
from services.coordinator.core.values import INLINE_BYTES_MAX, Error, OutputRef, Value, WorkKey
from services.coordinator.core.workflow_state import state_conflict

# Half of what a runner receives in one message. An output that is kept outside counts with its name alone.
INPUTS_BYTES_MAX = 32 * 1024 * 1024
# The messages of all errors that the templates of one node see. A character has up to four bytes.
_MESSAGES_CHARACTERS_MAX = 128 * 1024
_SHOWN = frozenset({*SETTLED, WorkState.CANCELLED})


class NodeWithoutOutput(NamedTuple):
    """A node that failed, was passed over or cancelled, or has not ended."""

    id: str
    # The state of its work, or PENDING if it has not ended.
    state: str
    error: Error | None


class SeenNodes(NamedTuple):
    """The nodes that the templates of a node refer to."""

    outputs: Sequence[tuple[str, Value]] = ()
    without_output: Sequence[NodeWithoutOutput] = ()


NOTHING_SEEN = SeenNodes()


def seen_nodes(execution: Execution, reader: Work) -> SeenNodes:
    if not reader.node.references:
        return NOTHING_SEEN
    outputs: list[tuple[str, Value]] = []
    others: list[NodeWithoutOutput] = []
    for node_id in reader.node.references:
        work = seen_work(execution, reader, node_id)
        if work is not None and work.output is not None:
            outputs.append((node_id, work.output))
        else:
            others.append(_without_output(node_id, work))
    return SeenNodes(outputs, _with_short_messages(others) if others else ())


def seen_work(execution: Execution, reader: Work, node_id: str) -> Work | None:
    """The work of a node as this work sees it. A compensation sees the work that it undoes, also if it was done again
    later."""
    if node_id == reader.node.undoes:
        return execution.work[WorkKey(node_id, 0, reader.key.generation)]
    return execution.current.get(node_id)


def _without_output(node_id: str, work: Work | None) -> NodeWithoutOutput:
    if work is None or work.state not in _SHOWN:
        return NodeWithoutOutput(node_id, "PENDING", None)
    error = work.run.error if work.state is WorkState.FAILED and work.run is not None else None
    return NodeWithoutOutput(node_id, work.state.value, error)


def _with_short_messages(nodes: list[NodeWithoutOutput]) -> list[NodeWithoutOutput]:
    """Hundreds of long messages would make the grant too large. Each gets the same share of the room."""
    failed = sum(each.error is not None for each in nodes)
    if failed * ERROR_MESSAGE_MAX <= _MESSAGES_CHARACTERS_MAX:
        return nodes
    most = _MESSAGES_CHARACTERS_MAX // failed
    return [each._replace(error=_cut(each.error, most)) if each.error is not None else each for each in nodes]


def _cut(error: Error, characters_max: int) -> Error:
    return Error(error.error_class, error.type, error.message[:characters_max])


class InputsFault(NamedTuple):
    """No runner can be given the work, because of what it sees."""

    type: str
    message: str


def inputs_fault(execution: Execution, work: Work) -> InputsFault | None:
    if conflict := state_conflict(execution, work.node):
        return InputsFault("STATE_CONFLICT", conflict)
    if excess := _excess_bytes(execution, work):
        message = (
            f"the outputs that its templates see have {excess} bytes together, and at most {INPUTS_BYTES_MAX} can be"
            " handed to a runner; refer to fewer outputs, or to smaller ones"
        )
        return InputsFault("INPUTS_TOO_LARGE", message)
    return None


def _excess_bytes(execution: Execution, work: Work) -> int:
    """How many bytes the outputs that the work sees have, if they are too many; otherwise 0."""
    if len(work.node.references) * INLINE_BYTES_MAX <= INPUTS_BYTES_MAX:
        # Almost every node has so few references that nothing needs to be counted.
        return 0
    size_bytes = sum(_size_bytes(value) for _, value in seen_nodes(execution, work).outputs)
    return size_bytes if size_bytes > INPUTS_BYTES_MAX else 0


def _size_bytes(value: Value) -> int:
    return len(value.key) + len(value.sha256) if isinstance(value, OutputRef) else len(value)
