"""A fork: an execution that takes over what another one, its origin, has done well, and does the rest itself.

What the fork may take over is read off the origin, as it was after the event that the fork names (`finished_work`).
What it does take over is decided by its own graph, when it starts (`take_over`), because its version may be another
one. It goes from node to node, each after all nodes before it. A node is taken over if

- the origin has done it well, its module is the same, and the caller has not asked for it to be done anew,
- all edges into it have resolved: each node before it was taken over too, or is skipped,
- and its join lets it begin.

So everything behind a node that is not taken over is done in the fork, and nothing of the graph is written twice:
branches, joins and skipped nodes follow from WorkTakenOver as they follow from any success.

Work that was taken over stays the work of the origin. If the fork ends badly, it is not undone; work that the origin
has undone, or may be about to undo, is not taken over.
"""

from collections import deque
from collections.abc import Iterator, Mapping

from services.coordinator.core.advance import pass_over_all
from services.coordinator.core.commands import FinishedWork
from services.coordinator.core.compensating import compensation_of
from services.coordinator.core.definition import Definition, Node
from services.coordinator.core.events import WorkTakenOver
from services.coordinator.core.state import Execution, Work, WorkState
from services.coordinator.core.turn import Turn


def finished_work(origin: Execution, from_node: str) -> dict[str, FinishedWork]:
    """What a fork of this execution may take over, by node."""
    found: dict[str, FinishedWork] = {}
    for node in origin.definition.graph:
        work = origin.current.get(node.id)
        if node.id == from_node or work is None or not _is_done(origin, work):
            continue
        assert work.run is not None, "only a run makes work succeed"
        assert work.output is not None
        found[node.id] = FinishedWork(_module(node), work.run.number, work.output, work.run.branch, work.begun_by or "")
    return found


def take_over(turn: Turn, finished: Mapping[str, FinishedWork]) -> None:
    """Right after the start: the nodes without incoming edges are ready, or about to begin."""
    for node in _in_order(turn.execution.definition):
        found, work = finished.get(node.id), turn.execution.current.get(node.id)
        if found is None or work is None or found.module != _module(node) or not _may_begin(work):
            continue
        begun_by = found.begun_by if _is_before(turn.execution.definition, found.begun_by, node) else ""
        run, then = len(turn.execution.runs) + 1, turn.after_success(work, found.branch)
        turn.emit(WorkTakenOver(turn.now, work.key, run, found.output, found.branch, found.run, begun_by, then))
        pass_over_all(turn)


def _is_done(origin: Execution, work: Work) -> bool:
    """It has succeeded, and is not undone."""
    if work.state is not WorkState.SUCCEEDED:
        return False
    if work.node.compensation is None:
        return True
    undoing = compensation_of(origin, work)
    if undoing is None:
        return origin.is_final or not origin.is_ending
    return undoing.state is WorkState.FAILED


def _module(node: Node) -> tuple[str, str]:
    return node.module, "" if node.body is None else node.body.module


def _may_begin(work: Work) -> bool:
    """A join of any edge may begin earlier, but then it does not depend on all nodes before it."""
    return work.unresolved == 0 and work.state in (WorkState.READY, WorkState.BEGUN)


def _is_before(definition: Definition, node_id: str, after: Node) -> bool:
    """An edge leads from the one to the other."""
    node = definition.nodes.get(node_id)
    return node is not None and any(target == after.id for target, _ in node.targets)


def _in_order(definition: Definition) -> Iterator[Node]:
    """The nodes of the graph, each after all nodes before it."""
    unresolved = {node.id: node.in_degree for node in definition.graph}
    following = deque(definition.roots)
    while following:
        node = definition.nodes[following.popleft()]
        yield node
        for target, places in node.targets:
            unresolved[target] -= len(places)
            if not unresolved[target]:
                following.append(target)
