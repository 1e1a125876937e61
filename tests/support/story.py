"""One execution driven through the pure core: *given* some history, *when* a command, *then* these events.

After each decision everything that must always hold is checked (`check`), so that every test of the core is a test of
the laws too: what was decided folds, the fold of the stored bytes shows the same rows, and nothing stands still.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from services.coordinator.core import (
    Execution,
    changed_runs,
    compile_definition,
    decide,
    effects,
    evolve,
    fold,
    summary,
)
from services.coordinator.core.commands import (
    Adopt,
    Assign,
    Cancel,
    Command,
    Grant,
    LoseRunner,
    Release,
    ReportFailure,
    ReportSuccess,
    Start,
    Tick,
)
from services.coordinator.core.events import Event, ExecutionFinished
from services.coordinator.core.projection import Row, execution_row, run_row
from services.coordinator.core.state import WorkState
from services.coordinator.core.values import Error, ErrorClass, ReleaseReason, Value
from services.coordinator.store.codec import Stored, decode, encode

SECOND = 1_000_000
EXECUTION_ID = "01931f3c-7a1b-7c3d-8e4f-1234567890ab"
BEGIN = 1_800_000_000 * SECOND

Document = dict[str, Any]


def node(id: str, module: str = "noop@1", **more: Any) -> Document:
    return {"id": id, "module": module, **more}


def chain(*ids: str) -> list[Document]:
    return [{"from": source, "to": target} for source, target in pairwise(ids)]


def edge(source: str, target: str, when: str = "success") -> Document:
    return {"from": source, "to": target, "when": when}


def rows(execution: Execution) -> tuple[Row, list[Row]]:
    return execution_row(execution), [run_row(execution, run) for run in execution.runs]


class Story:
    """The clock stands still unless `later` moves it."""

    def __init__(self, nodes: Sequence[Document] = (), edges: Sequence[Document] = (), **more: Any) -> None:
        self.definition = compile_definition(
            {"name": "story", "nodes": list(nodes), "edges": list(edges), **more}
        )
        # Any, as are the decisions: a test reads the fields of what it expects, and fails where that is not there.
        self.execution: Any = Execution(EXECUTION_ID, self.definition)
        self.journal: list[Event] = []
        self.effects: list[Any] = []
        self.now = BEGIN

    def again(self) -> "Story":
        """Another one that has come as far."""
        other = Story.__new__(Story)
        other.definition, other.journal, other.now, other.effects = (
            self.definition,
            list(self.journal),
            self.now,
            [],
        )
        other.execution = fold(Execution(EXECUTION_ID, self.definition), self.journal)
        return other

    # When

    def when(self, command: Command) -> Any:
        """The decision, folded; `effects` are those of its events."""
        before = rows(self.execution)
        decision = decide(self.execution, command, self.now)
        assert rows(self.execution) == before, "deciding changed the state"
        self.effects = []
        for event in decision.events:
            runs_before = {run.number: run_row(self.execution, run) for run in self.execution.runs}
            evolve(self.execution, event)
            stored = decode(encode(event, EXECUTION_ID, self.execution.seq, self.execution.epoch))
            assert stored == Stored(EXECUTION_ID, self.execution.seq, self.execution.epoch, event)
            self.journal.append(event)
            self.effects += effects(self.execution, event)
            told = {run.number for run in changed_runs(self.execution, event)}
            for run in self.execution.runs:
                if run.number not in told:
                    assert runs_before[run.number] == run_row(self.execution, run), "a row changed unsaid"
        check(self)
        return decision

    def start(self, **more: Any) -> Any:
        start: Any = {"epoch": 1, "holder": "c1", "workspace": "default", "workflow": "story", "version": 1}
        return self.when(Start(**(start | more)))

    def assign(self, *ids: str, instance: str = "i1", is_idempotent: bool = False) -> Any:
        """Lease the ready works of these nodes, or all that are ready."""
        works = [self.work(id) for id in ids] or list(self.execution.ready)
        runner = f"runner of {instance}"
        return self.when(
            Assign([Grant(work, instance, runner, is_idempotent=is_idempotent) for work in works])
        )

    def succeed(self, id: str, output: Value = b'{"ok":true}', branch: str = "") -> Any:
        run = self.run(id)
        return self.when(
            ReportSuccess(
                run.number, run.epoch, output, branch, self.now - 2, self.now - 1, b"i" * 32, b"c" * 32, 3
            )
        )

    def fail(
        self,
        id: str,
        error_class: ErrorClass = ErrorClass.PERMANENT,
        random: float = 1.0,
        retry_after: int = 0,
    ) -> Any:
        run = self.run(id)
        error = Error(error_class, "BOOM", f"{id} went wrong 42 times")
        return self.when(ReportFailure(run.number, run.epoch, error, random, retry_after))

    def do(self, *ids: str) -> None:
        """Lease and succeed, one after the other."""
        for id in ids:
            self.assign(id)
            self.succeed(id)

    def lose(self, instance: str = "i1", *, is_idempotent_only: bool = False) -> Any:
        return self.when(LoseRunner(instance, is_idempotent_only))

    def release(
        self, id: str, reason: ReleaseReason = ReleaseReason.DRAINED, may_have_begun: bool = False
    ) -> Any:
        run = self.run(id)
        return self.when(Release(run.number, run.epoch, reason, may_have_begun))

    def cancel(self) -> Any:
        return self.when(Cancel("m1", "enough", "ann"))

    def adopt(self, *live: str, epoch: int = 2) -> Any:
        return self.when(Adopt(epoch, "c2", frozenset(live)))

    def later(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    def tick(self, random: float = 0.5) -> Any:
        return self.when(Tick(random))

    def wake(self) -> Any:
        """Let time pass until the next timer."""
        self.now = max(self.now, self.execution.next_wake())
        return self.tick()

    # Then

    def work(self, id: str) -> Any:
        return self.execution.works[self.definition.index[id]]

    def run(self, id: str) -> Any:
        """The last run of a node."""
        return next(run for run in reversed(self.execution.runs) if run.work.node.id == id)

    @property
    def ready(self) -> list[str]:
        return [work.node.id for work in self.execution.ready]

    @property
    def state(self) -> str:
        return str(self.execution.state.value)

    @property
    def states(self) -> dict[str, str]:
        return {work.node.id: work.state.value for work in self.execution.works}


def names(decision: Any) -> list[str]:
    return [type(event).__name__ for event in decision.events]


def check(story: Story) -> None:
    execution = story.execution
    if execution.seq == 0:
        return
    again = fold(Execution(EXECUTION_ID, story.definition), story.journal)
    assert rows(again) == rows(execution), "the fold shows other rows"
    assert again.next_wake() == execution.next_wake()
    assert list(again.live) == list(execution.live)
    _check_counts(execution)
    assert [type(event) for event in story.journal].count(ExecutionFinished) == int(execution.is_final)
    if execution.is_final and execution.stop is None:
        assert execution.error == execution.first_failure
    told = summary(execution)
    nodes = sorted(id for ids in told for id in ids)
    assert nodes == sorted(work.node.id for work in execution.works[: execution.definition.size])


def _check_counts(execution: Execution) -> None:
    states = [work.state for work in execution.works]
    graph = states[: execution.definition.size]
    settled = (WorkState.SUCCEEDED, WorkState.FAILED, WorkState.SKIPPED, WorkState.BLOCKED)
    assert len(execution.ready) == states.count(WorkState.READY)
    assert len(execution.live) == states.count(WorkState.LIVE)
    assert len(execution.held) == states.count(WorkState.HELD)
    assert execution.waiting == states.count(WorkState.BACKOFF)
    assert execution.unsettled == sum(state not in settled for state in graph)
    going = len(execution.ready) + len(execution.live) + len(execution.held) + execution.waiting
    assert execution.is_final == (going == 0), "it stands still"
    if going and not execution.live and not execution.ready:
        assert execution.next_wake(), "nothing would ever wake it"
