"""How the nodes of an execution ended, for people."""

from typing import NamedTuple

from services.coordinator.core.state import SETTLED, Execution, WorkState


class Summary(NamedTuple):
    """Every node of the graph of a final execution by id, in exactly one of the first five."""

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
    ids: dict[WorkState, list[str]] = {state: [] for state in (*SETTLED, WorkState.CANCELLED)}
    done = ids[WorkState.SUCCEEDED]
    for node in execution.definition.graph:
        work = execution.current.get(node.id)
        if work is not None and work.state is WorkState.SUCCEEDED:
            # Nearly all have, and to look a member of an enum up costs more than the rest.
            done.append(node.id)
            continue
        state = WorkState.CANCELLED if work is None or work.state not in SETTLED else work.state
        ids[state].append(node.id)
    succeeded, failed, skipped, blocked, cancelled = map(tuple, ids.values())
    compensated, not_compensated = _compensated(execution) if execution.compensation is not None else ((), ())
    return Summary(succeeded, failed, skipped, blocked, cancelled, compensated, not_compensated)


def _compensated(execution: Execution) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The nodes that were undone, and those that were not although they have a compensation."""
    undone: list[str] = []
    not_undone: list[str] = []
    for node in execution.definition.graph:
        work = execution.current.get(node.compensation.id) if node.compensation is not None else None
        if work is not None:
            (undone if work.state is WorkState.SUCCEEDED else not_undone).append(node.id)
    return tuple(undone), tuple(not_undone)
