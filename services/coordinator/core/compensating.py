"""Compensation: the finished nodes of an execution that does not end well are undone, the last one first.

An execution that is about to end as FAILED, CANCELLED or TIMEOUT first undoes the work that has succeeded and whose
node says how (`compensate`). It is not final before that is done. The compensations are done one after the other, in
the reverse order in which the work succeeded. Each is work of its own: it has its own key, so its effect keys differ
from those of the work that it undoes, and its own attempts and retries. The outcome of one lets the next one begin,
also if it failed for good.

What the execution ends as was decided before, and nothing changes it any more: neither a cancel, nor the deadline, nor
a compensation that fails.
"""

from services.coordinator.core.events import CompensationStarted, Consequences
from services.coordinator.core.state import Execution, Work
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import ExecutionState, FinalError, WorkKey


def begin_compensation(turn: Turn, outcome: ExecutionState, error: FinalError) -> None:
    works = tuple(_undoing(work) for work in reversed(turn.execution.compensable))
    turn.emit(CompensationStarted(turn.now, outcome, error, works, Consequences(ready=works[:1])))


def compensation_of(execution: Execution, work: Work) -> Work | None:
    """The work that undoes this work. None: it has no compensation, or none was begun."""
    return None if work.node.compensation is None else execution.work.get(_undoing(work))


def _undoing(work: Work) -> WorkKey:
    assert work.node.compensation is not None
    return WorkKey(work.node.compensation.id, 0, work.key.generation)
