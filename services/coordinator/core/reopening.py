"""Which work is done again when a person reopens an execution, and what follows from that at once.

The chosen nodes are done again, and every node that depends on them: each gets new work, with the next generation. Work
that has not begun keeps its key, because nothing was done under it. What stays keeps its outcome, and the edges out of
it count for the new work as they did for the old (`graph.py` has the tables). One kind of node stays although an edge
from reopened work leads to it: one that needed any edge (join ANY) and was let in by an edge that stays.
"""

from collections.abc import Collection, Iterable, Mapping

from services.coordinator.core.compensating import compensation_of
from services.coordinator.core.definition import Edge, JoinRule, Node
from services.coordinator.core.events import Consequences, ReopenedWork, Resolution, WaitKind
from services.coordinator.core.graph import JoinVerdict, Outcome, join_verdict, resolve
from services.coordinator.core.state import SETTLED, Execution, Work, WorkState
from services.coordinator.core.values import FinalError, WorkKey

_OUTCOMES = {
    WorkState.SUCCEEDED: Outcome.SUCCEEDED,
    WorkState.SKIPPED: Outcome.SKIPPED,
    WorkState.BLOCKED: Outcome.BLOCKED,
}


def unfinished_nodes(execution: Execution) -> list[str]:
    """Nodes that failed with nobody to handle it, that have no outcome, or that were undone. The output's node counts
    once it has work."""
    output = execution.definition.output_node
    nodes = list(execution.definition.graph)
    if output is not None and output.id in execution.current:
        nodes.append(output)
    return [node.id for node in nodes if _is_unfinished(execution, node)]


def is_held(execution: Execution, node_id: str) -> bool:
    """Its work failed for good and waits for a person."""
    work = execution.current.get(node_id)
    wait = None if work is None else execution.waits.get(work.key)
    return wait is not None and wait.kind is WaitKind.PERSON


def _is_unfinished(execution: Execution, node: Node) -> bool:
    work = execution.current.get(node.id)
    if work is None or work.state not in SETTLED:
        return True
    undoing = compensation_of(execution, work)
    was_undone = undoing is not None and undoing.state is WorkState.SUCCEEDED
    return was_undone or (work.state is WorkState.FAILED and not node.is_failure_handled)


def closure(execution: Execution, chosen: Iterable[str]) -> list[str]:
    """The chosen nodes and all that depend on them, in the order of the definition."""
    nodes, found, to_follow = execution.definition.nodes, set(chosen), list(chosen)
    sources = _sources(execution)
    while to_follow:
        for target, _ in nodes[to_follow.pop()].targets:
            if target not in found and not _stays(execution, nodes[target], sources[target], found):
                found.add(target)
                to_follow.append(target)
    output = execution.definition.output_node
    if output is not None and output.id in execution.current:
        found.add(output.id)
    return [node_id for node_id in nodes if node_id in found]


def _stays(execution: Execution, node: Node, sources: Iterable[tuple[Node, Edge]], found: Collection[str]) -> bool:
    """An edge that stays has let it in, and it has not failed."""
    work = execution.current.get(node.id)
    if node.join is not JoinRule.ANY or work is None or work.state is not WorkState.SUCCEEDED:
        return False
    staying = (pair for pair in sources if pair[0].id not in found)
    return any(resolution(execution, *pair) is Resolution.TAKEN for pair in staying)


def _sources(execution: Execution) -> Mapping[str, list[tuple[Node, Edge]]]:
    """The edges into each node, with the nodes that they leave."""
    sources: dict[str, list[tuple[Node, Edge]]] = {node_id: [] for node_id in execution.definition.nodes}
    for node in execution.definition.graph:
        for edge in node.edges:
            sources[edge.target].append((node, edge))
    return sources


def resolution(execution: Execution, source: Node, edge: Edge) -> Resolution | None:
    """How an edge out of work that stays has resolved. None: the work has no outcome yet."""
    work = execution.current.get(source.id)
    if work is None or work.state not in SETTLED:
        return None
    if work.state is WorkState.FAILED:
        return resolve(Outcome.HANDLED if source.is_failure_handled else Outcome.FAILED, edge, "")
    branch = work.run.branch if work.run is not None else ""
    return resolve(_OUTCOMES[work.state], edge, branch)


def reopened_work(
    execution: Execution, node_ids: Collection[str], overrides: Mapping[str, bytes]
) -> tuple[ReopenedWork, ...]:
    """The new work of these nodes. The edges among them have yet to resolve."""
    sources, reopened = _sources(execution), set(node_ids)
    made: list[ReopenedWork] = []
    for node_id in node_ids:
        staying = [pair for pair in sources[node_id] if pair[0].id not in reopened]
        known = [each for pair in staying if (each := resolution(execution, *pair)) is not None]
        is_choosing = execution.definition.nodes[node_id].begins_on_one_path
        taken = [pair[0].id for pair in staying if is_choosing and resolution(execution, *pair) is Resolution.TAKEN]
        made.append(
            ReopenedWork(
                _next_key(execution, node_id),
                len(sources[node_id]) - len(known),
                known.count(Resolution.TAKEN),
                known.count(Resolution.BLOCKED),
                overrides.get(node_id, b""),
                taken[0] if taken else "",
            )
        )
    return tuple(made)


def _next_key(execution: Execution, node_id: str) -> WorkKey:
    work: Work | None = execution.current.get(node_id)
    if work is None:
        return execution.definition.nodes[node_id].key
    return work.key if work.state is WorkState.IDLE else work.key._replace(generation=work.key.generation + 1)


def consequences(execution: Execution, works: Iterable[ReopenedWork], fixed: str = "") -> Consequences:
    """What becomes of the new work at once. The output is rendered when all nodes are done. The work of the node
    `fixed` is not begun, because a person has done it."""
    ready: list[WorkKey] = []
    begun: list[WorkKey] = []
    skipped: list[WorkKey] = []
    blocked: list[WorkKey] = []
    for work in works:
        node = execution.definition.nodes[work.key.node]
        if not node.in_graph or node.id == fixed:
            continue
        is_root = node.in_degree == 0
        verdict = join_verdict(node.join, work.unresolved, work.taken, work.blocked)
        if is_root or verdict is JoinVerdict.START:
            (ready if node.needs_runner else begun).append(work.key)
        elif verdict is JoinVerdict.SKIP:
            skipped.append(work.key)
        elif verdict is JoinVerdict.BLOCK:
            blocked.append(work.key)
    return Consequences(b"", tuple(ready), tuple(begun), tuple(skipped), tuple(blocked))


def first_failure_left(execution: Execution, reopened: Collection[str]) -> FinalError | None:
    """The first failure that nobody handles, among the work that stays."""
    for run in execution.runs:
        work, error = run.work, run.error
        is_failure = work.state is WorkState.FAILED and work.run is run and execution.current[work.node.id] is work
        if is_failure and error is not None and not work.node.is_failure_handled and work.node.id not in reopened:
            return FinalError(work.node.id, error.type, error.message)
    return None
