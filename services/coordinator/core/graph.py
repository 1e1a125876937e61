"""Says how outcomes travel along edges. Two tables are the whole of it.

An edge resolves when its source has an outcome, to one of three:

    outcome of the source    success      failure      always       label (matching / other)
    SUCCEEDED                TAKEN        SKIPPED      TAKEN        TAKEN / SKIPPED
    HANDLED                  SKIPPED      TAKEN        TAKEN        SKIPPED      failed, and a failure edge leaves it
    FAILED                   BLOCKED      TAKEN        TAKEN        BLOCKED      failed, and no failure edge does
    SKIPPED                  SKIPPED      SKIPPED      SKIPPED      SKIPPED
    BLOCKED                  BLOCKED      SKIPPED      TAKEN        BLOCKED

So a failure that nobody handles blocks whatever needs its success, all the way down, and nothing else. A failure with
a failure edge is a branch like any other. `always` works like `finally`: it runs after success, after failure, and
where a failure further up means that its source never runs, but not on a branch that was not chosen. `always` cleans
up and does not absolve: only a failure edge makes a failure handled.

A node then waits, starts, or is passed over without running:

    join   some edges unresolved           all edges resolved
    ALL    wait                            one BLOCKED: block;  else one TAKEN: start;  else skip
    ANY    one TAKEN: start;  else wait    one TAKEN: start;  else one BLOCKED: block;  else skip

`judge` is the only place where outcomes, edges and joins meet. It is asked once per outcome, before the event is
emitted, and its answer is part of the event.
"""

from enum import IntEnum

from services.coordinator.core.definition import Edge, JoinRule
from services.coordinator.core.events import NOTHING_FOLLOWS, Consequences, Resolution
from services.coordinator.core.state import Compensation, Execution, Work, WorkState
from services.coordinator.core.values import WorkKey


class Outcome(IntEnum):
    """How a piece of work ended: the rows of the first table."""

    SUCCEEDED = 0
    HANDLED = 1
    FAILED = 2
    SKIPPED = 3
    BLOCKED = 4


class JoinVerdict(IntEnum):
    """The cells of the second table: a node does this when more of its edges are resolved."""

    WAIT = 0
    START = 1
    SKIP = 2
    BLOCK = 3


# Every step asks for these. To look a member up in its enum takes 45 ns in Python 3.11.
_TAKEN, _SKIPPED, _BLOCKED = Resolution
_WAIT, _START, _SKIP, _BLOCK = JoinVerdict
_IDLE, _ANY = WorkState.IDLE, JoinRule.ANY

# Columns: success, failure, always, label that does not match.
RESOLUTIONS: tuple[tuple[Resolution, ...], ...] = (
    (_TAKEN, _SKIPPED, _TAKEN, _SKIPPED),
    (_SKIPPED, _TAKEN, _TAKEN, _SKIPPED),
    (_BLOCKED, _TAKEN, _TAKEN, _BLOCKED),
    (_SKIPPED, _SKIPPED, _SKIPPED, _SKIPPED),
    (_BLOCKED, _SKIPPED, _TAKEN, _BLOCKED),
)


def resolve(outcome: Outcome, edge: Edge, branch: str) -> Resolution:
    # Only an edge with When.LABEL has a label.
    if branch and edge.label == branch and outcome is Outcome.SUCCEEDED:
        return _TAKEN
    return RESOLUTIONS[outcome][edge.when]


def join_verdict(join: JoinRule, unresolved: int, taken: int, blocked: int) -> JoinVerdict:
    if taken and join is _ANY:
        return _START
    if unresolved:
        return _WAIT
    if blocked:
        return _BLOCK
    return _START if taken else _SKIP


def judge(execution: Execution, work: Work, outcome: Outcome, branch: str = "") -> Consequences:
    """The consequences of an outcome: how the edges out of the node resolve, and what that does to their targets."""
    node = work.node
    if not node.edges:
        return NOTHING_FOLLOWS if execution.compensation is None else _next_compensation(execution.compensation, work)
    resolutions: list[Resolution] = []
    for edge in node.edges:
        resolutions.append(resolve(outcome, edge, branch))  # noqa: PERF401 - a comprehension costs a function
    ready: list[WorkKey] = []
    begun: list[WorkKey] = []
    skipped: list[WorkKey] = []
    blocked: list[WorkKey] = []
    for target_id, places in node.targets:
        target = execution.target_of(target_id)
        if target.state is not _IDLE:
            continue
        taken, blocked_edges = target.taken, target.blocked
        for place in places:
            taken += resolutions[place] is _TAKEN
            blocked_edges += resolutions[place] is _BLOCKED
        verdict = join_verdict(target.node.join, target.unresolved - len(places), taken, blocked_edges)
        if verdict is _START:
            (ready if target.node.needs_runner else begun).append(target.key)
        elif verdict is _SKIP:
            skipped.append(target.key)
        elif verdict is _BLOCK:
            blocked.append(target.key)
    return Consequences(bytes(resolutions), tuple(ready), tuple(begun), tuple(skipped), tuple(blocked))


def _next_compensation(compensation: Compensation, work: Work) -> Consequences:
    """Compensations are done one after the other, whatever comes of each."""
    following = compensation.next.get(work.key)
    return NOTHING_FOLLOWS if following is None else Consequences(ready=(following,))


def roots(execution: Execution) -> Consequences:
    """The consequences of the start: the nodes without incoming edges start."""
    nodes = [execution.definition.nodes[root] for root in execution.definition.roots]
    return Consequences(
        ready=tuple(node.key for node in nodes if node.needs_runner),
        begun=tuple(node.key for node in nodes if not node.needs_runner),
    )
