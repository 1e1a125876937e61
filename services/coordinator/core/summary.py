"""How the nodes of an execution ended, for people."""

from typing import Final, NamedTuple

from services.coordinator.core.state import Execution, WorkState
from services.coordinator.core.values import RunState

_RUNNING_MAX: Final = 100
# The states of nodes that ended without success, in the order of the summary.
_OTHERS: Final = (WorkState.FAILED, WorkState.SKIPPED, WorkState.BLOCKED, WorkState.CANCELLED)
_NOTHING: Final[list[tuple[str, ...]]] = [() for _ in _OTHERS]


class Summary(NamedTuple):
    """The nodes of the graph by id. Each node of a final execution is in exactly one of the first five, and before the
    end each node that has an outcome."""

    succeeded: tuple[str, ...]
    failed: tuple[str, ...]
    skipped: tuple[str, ...]
    # Held up by a failure that nothing handled.
    blocked: tuple[str, ...]
    # Stopped or never begun, because the execution was ended first.
    cancelled: tuple[str, ...]
    # Of those that succeeded: the ones that were undone, and the ones whose compensation failed.
    compensated: tuple[str, ...]
    not_compensated: tuple[str, ...]


def summary(execution: Execution) -> Summary:
    succeeded: list[str] = []
    # By their state. Most executions have none, and to look a member of an enum up costs more than the rest.
    others: dict[WorkState, list[str]] = {}
    for node in execution.definition.graph:
        work = execution.current.get(node.id)
        if work is not None and work.state is WorkState.SUCCEEDED:
            succeeded.append(node.id)
        elif work is not None and work.state in _OTHERS:
            others.setdefault(work.state, []).append(node.id)
        elif execution.is_final:
            others.setdefault(WorkState.CANCELLED, []).append(node.id)
    failed, skipped, blocked, cancelled = [tuple(others.get(state, ())) for state in _OTHERS] if others else _NOTHING
    compensated, not_compensated = _compensated(execution) if execution.compensation is not None else ((), ())
    return Summary(tuple(succeeded), failed, skipped, blocked, cancelled, compensated, not_compensated)


def running_nodes(execution: Execution) -> list[str]:
    """The nodes that are under way, at most 100 of them: a runner has them, or they wait for what their module waits
    for."""
    states = (RunState.LEASED, RunState.RUNNING)
    return sorted({run.work.node.id for run in execution.runs if run.state in states})[:_RUNNING_MAX]


def _compensated(execution: Execution) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The nodes that were undone, and those that were not although they have a compensation."""
    undone: list[str] = []
    not_undone: list[str] = []
    for node in execution.definition.graph:
        work = execution.current.get(node.compensation.id) if node.compensation is not None else None
        if work is not None:
            (undone if work.state is WorkState.SUCCEEDED else not_undone).append(node.id)
    return tuple(undone), tuple(not_undone)
