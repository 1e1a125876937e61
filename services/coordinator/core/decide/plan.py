"""A decision in the making: what follows from what, worked out beside the state.

Deciding changes nothing, yet one outcome may settle a chain of nodes, open joins and sleeps, and end the execution. A
plan keeps the few numbers that differ from the state so far (`going`, the edge counts it touched) and the events, in an
order in which `evolve` can apply them one by one. The commands' own files fill it; `conclude` closes it.

Hazards: what is counted here and what `evolve` does must agree event by event. That they do is a property test: after
each decision the plan's numbers equal the folded state's.
"""

from typing import assert_never

from services.coordinator.core.decision import Decision
from services.coordinator.core.definition import Control, Edge, Node
from services.coordinator.core.events import (
    Event,
    ExecutionFinished,
    JoinPassed,
    NodesBlocked,
    NodesSkipped,
    OutputRequested,
    RunCancelled,
    SleepStarted,
    StopOrdered,
)
from services.coordinator.core.evolve import EMPTY_OUTPUT
from services.coordinator.core.graph import Outcome, Resolution, Verdict, judge, resolve
from services.coordinator.core.outputs import leaf_outputs
from services.coordinator.core.state import Execution, Stop, Work, WorkState
from services.coordinator.core.values import (
    SECOND,
    BrokenInvariant,
    Error,
    ExecutionState,
    Failure,
    Instant,
    Span,
    Value,
)

# How long runners may take to say that they stopped; then the execution is final without them (L5: 2 s in all).
ANSWER_TERM: Span = 3 * SECOND // 2

_Settled = tuple[Node, Outcome, str]


class _Count:
    """Edges into one node, as they will be."""

    __slots__ = ("blocked", "is_idle", "taken", "unresolved")

    def __init__(self, execution: Execution, target: int) -> None:
        self.unresolved = execution.unresolved[target]
        self.taken = execution.taken[target]
        self.blocked = execution.blocked[target]
        self.is_idle = execution.works[target].state is WorkState.IDLE


class Plan:
    __slots__ = (
        "closed",
        "counts",
        "events",
        "execution",
        "failure",
        "going",
        "live",
        "minted",
        "now",
        "opened",
        "outputs",
        "stop",
        "unsettled",
    )

    def __init__(self, execution: Execution, now: Instant) -> None:
        self.execution = execution
        self.now = now
        self.events: list[Event] = []
        self.live = len(execution.live)
        # Live, ready, held or in backoff: while there is one, the execution goes on.
        self.going = self.live + len(execution.ready) + len(execution.held) + execution.waiting
        self.unsettled = execution.unsettled
        self.minted = len(execution.runs)
        self.counts: dict[int, _Count] = {}
        self.outputs: dict[int, Value] = {}
        self.stop = execution.stop
        self.failure = execution.first_failure
        # Runs held by the core that begin and end within this decision.
        self.opened: list[int] = []
        self.closed: set[int] = set()

    def add(self, event: Event) -> None:
        self.events.append(event)

    def end_live(self) -> None:
        self.live -= 1
        self.going -= 1

    def end_held(self, number: int) -> None:
        self.closed.add(number)
        self.going -= 1

    def succeed(self, node: Node, output: Value, branch: str = "") -> None:
        self.outputs[node.index] = output
        self._settle(node, Outcome.SUCCEEDED, branch)

    def fail(self, work: Work, error: Error) -> None:
        """For good: no attempt is left."""
        node = work.node
        if node.is_failure_handled:
            self._settle(node, Outcome.HANDLED)
            return
        if self.failure is None:
            self.failure = Failure(node.id, error.type, error.message)
        if self.execution.definition.is_fail_fast:
            self.order_stop(ExecutionState.FAILED, self.failure)
        else:
            self._settle(node, Outcome.FAILED)

    def start_roots(self) -> None:
        nodes = self.execution.definition.nodes
        settled: list[_Settled] = []
        for root in self.execution.definition.roots:
            self._start(nodes[root], settled)
        self._propagate(settled)

    def hold(self, number: int, node: Node, wake_time: Instant, work: Work) -> None:
        """A sleep begins."""
        self.add(SleepStarted(self.now, number, node.id, work.iteration, work.generation, wake_time))
        self.opened.append(number)
        self.going += 1

    def order_stop(
        self, outcome: ExecutionState, error: Failure, message_id: str = "", caller: str = ""
    ) -> None:
        self.stop = Stop(outcome, error, self.now + ANSWER_TERM)
        self.add(StopOrdered(self.now, outcome, error, self.stop.answer_by, message_id, caller))
        for number in (*self.execution.held, *self.opened):
            if number not in self.closed:
                self.add(RunCancelled(self.now, number, 0, 0, False))
        self.going = self.live

    def conclude(self) -> Decision:
        """End the execution if nothing is going any more."""
        if self.going == 0 and not self.execution.is_final:
            self._finish()
        return Decision(self.events)

    def _finish(self) -> None:
        definition = self.execution.definition
        if self.stop is not None:
            self._finish_as(self.stop.outcome, None, self.stop.error)
        elif self.unsettled:
            raise BrokenInvariant(
                f"nothing is ready, yet {self.unsettled} nodes remain and no failure holds them"
            )
        elif self.failure is not None:
            self._finish_as(ExecutionState.FAILED, None, self.failure)
        elif definition.output_node is None:
            self._finish_as(ExecutionState.SUCCESS, leaf_outputs(self.execution, self.outputs), None)
        elif self.execution.is_output_requested:
            self._finish_as(ExecutionState.SUCCESS, self.outputs[definition.output_node.index], None)
        else:
            self.add(OutputRequested(self.now))

    def _finish_as(self, state: ExecutionState, output: Value | None, error: Failure | None) -> None:
        # At the start itself the state does not know its start time yet.
        start_time = self.execution.start_time or self.now
        self.add(ExecutionFinished(self.now, state, output, error, max(self.now - start_time, 0)))

    def _settle(self, node: Node, outcome: Outcome, branch: str = "") -> None:
        if node.index < self.execution.definition.size:
            self.unsettled -= 1
        if self.stop is None:
            self._propagate([(node, outcome, branch)])

    def _propagate(self, settled: list[_Settled]) -> None:
        """Breadth first; the list grows while it is walked."""
        nodes = self.execution.definition.nodes
        for source, outcome, branch in settled:
            for edge in source.edges:
                verdict = self._count_down(edge, outcome, branch)
                match verdict:
                    case Verdict.WAIT:
                        pass
                    case Verdict.START:
                        self._start(nodes[edge.target], settled)
                    case Verdict.SKIP:
                        self._skip(nodes[edge.target], settled)
                    case Verdict.BLOCK:
                        self._block(nodes[edge.target], settled)
                    case _:
                        assert_never(verdict)

    def _count_down(self, edge: Edge, outcome: Outcome, branch: str) -> Verdict:
        target = edge.target
        count = self.counts.get(target)
        if count is None:
            count = self.counts[target] = _Count(self.execution, target)
        count.unresolved -= 1
        resolution = resolve(outcome, edge, branch)
        if resolution is Resolution.TAKEN:
            count.taken += 1
        elif resolution is Resolution.BLOCKED:
            count.blocked += 1
        if not count.is_idle:
            return Verdict.WAIT
        join = self.execution.definition.nodes[target].join
        verdict = judge(join, count.unresolved, count.taken, count.blocked)
        count.is_idle = verdict is Verdict.WAIT
        return verdict

    def _start(self, node: Node, settled: list[_Settled]) -> None:
        if node.control is None or node.needs_runner:
            self.going += 1
            return
        work = self.execution.works[node.index]
        match node.control:
            case Control.JOIN:
                self.minted += 1
                self.add(JoinPassed(self.now, self.minted, node.id, work.iteration, work.generation))
                self.unsettled -= 1
                self.outputs[node.index] = EMPTY_OUTPUT
                settled.append((node, Outcome.SUCCEEDED, ""))
            case Control.SLEEP:
                assert node.sleep is not None
                self.minted += 1
                self.hold(self.minted, node, node.sleep.until or self.now + node.sleep.span, work)
            case _:
                assert_never(node.control)

    def _skip(self, node: Node, settled: list[_Settled]) -> None:
        self.minted += 1
        self.unsettled -= 1
        settled.append((node, Outcome.SKIPPED, ""))
        last = self.events[-1]
        if isinstance(last, NodesSkipped):
            last.nodes.append(node.id)
        else:
            self.add(NodesSkipped(self.now, self.minted, [node.id]))

    def _block(self, node: Node, settled: list[_Settled]) -> None:
        self.unsettled -= 1
        settled.append((node, Outcome.BLOCKED, ""))
        last = self.events[-1]
        if isinstance(last, NodesBlocked):
            last.nodes.append(node.id)
        else:
            self.add(NodesBlocked(self.now, [node.id]))
