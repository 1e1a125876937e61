"""Drives one execution through the pure core: *given* some history, *when* a command, *then* these events.

After each command, the laws are checked (`check`), so every test of the core tests them too: the stored bytes fold to
the same rows, the snapshots add up to the same state, a decision is complete, and nothing stands still.
"""

from collections.abc import Sequence
from dataclasses import fields as dataclass_fields
from itertools import pairwise
from typing import Any

from services.coordinator.core.commands import (
    Adopt,
    Assign,
    AssignedRun,
    Cancel,
    Command,
    LetThrough,
    LoseRunner,
    Pause,
    Release,
    ReportFailure,
    ReportHeldBack,
    ReportStopped,
    ReportSuccess,
    Resume,
    Retry,
    Start,
    Tick,
)
from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.effects import effects
from services.coordinator.core.events import (
    CommandRefused,
    Event,
    ExecutionFinished,
    ExecutionReopened,
    LateReportRejected,
)
from services.coordinator.core.fold import fold
from services.coordinator.core.handlers import handle
from services.coordinator.core.projection import RowValues, approval_row, execution_row, run_row
from services.coordinator.core.state import Execution, WorkState, unsettled
from services.coordinator.core.summary import summary
from services.coordinator.core.values import Error, ErrorClass, Origin, ReleaseReason, Value
from services.coordinator.store.codec import encode_event, seal, unseal
from tests.support.snapshots import FollowedSnapshots
from windlass.definition.examination import examine

SECOND = 1_000_000
EXECUTION_ID = "01931f3c-7a1b-7c3d-8e4f-1234567890ab"
BEGIN = 1_800_000_000 * SECOND

Document = dict[str, Any]
_ENDED = {"SUCCEEDED", "FAILED", "SKIPPED", "BLOCKED", "CANCELLED"}
_ORIGIN = {field.name for field in dataclass_fields(Origin)}


def node(id: str, module: str = "noop@1", **more: Any) -> Document:
    return {"id": id, "module": module, **more}


def chain(*ids: str) -> list[Document]:
    return [{"from": source, "to": target} for source, target in pairwise(ids)]


def edge(source: str, target: str, when: str = "success") -> Document:
    return {"from": source, "to": target, "when": when}


def rows(execution: Execution) -> tuple[RowValues, list[RowValues], list[RowValues]]:
    if execution.seq == 0:
        return (), [], []
    approvals = [approval_row(execution, number) for number in execution.approvals]
    return execution_row(execution), [run_row(execution, run) for run in execution.runs], approvals


def names(decision: Any) -> list[str]:
    return [type(event).__name__ for event in decision.events]


def the_event(name: str, decision: Any, node: str = "") -> Any:
    """The one event of this name in the decision, or the one that is about this node."""
    named = [event for event in decision.events if type(event).__name__ == name]
    (event,) = [event for event in named if not node or event.key.node == node]
    return event


def fields(event: Any, *names: str) -> tuple[Any, ...]:
    """The fields of an event that a test is about. `node` is that of its key."""
    return tuple(event.key.node if name == "node" else getattr(event, name) for name in names)


def events(decision: Any, *names: str) -> list[tuple[Any, ...]]:
    """All events of the decision, each by its name and these fields."""
    return [(type(event).__name__, *fields(event, *names)) for event in decision.events]


class Story:
    """The clock stands still unless `later` moves it."""

    def __init__(self, nodes: Sequence[Document] = (), edges: Sequence[Document] = (), **more: Any) -> None:
        document = {"name": "story", "nodes": list(nodes), "edges": list(edges), **more}
        self.definition = compile_definition(document, examine(document).references)
        # The type is Any, as for the decisions: a test reads the fields that it expects, and fails if they are missing.
        self.execution: Any = Execution(EXECUTION_ID, self.definition)
        self.journal: list[Event] = []
        # The rows of the stored journal, one for each decision that had events.
        self.stored: list[bytes] = []
        self.effects: list[Any] = []
        self.snapshots = FollowedSnapshots(self.execution, 25)
        self.now = BEGIN

    def again(self) -> "Story":
        """A successor that has only the journal."""
        other = Story.__new__(Story)
        other.definition, other.now, other.effects = self.definition, self.now, []
        other.journal, other.stored = list(self.journal), list(self.stored)
        other.execution = fold(Execution(EXECUTION_ID, self.definition), self.journal)
        other.snapshots = FollowedSnapshots(other.execution, 0)
        return other

    # When

    def when(self, command: Command) -> Any:
        """The decision on the command. Its events are applied, and `effects` has their effects."""
        before = rows(self.execution)
        decision = handle(self.execution, command, self.now)
        if decision.refusal is not None:
            assert all(isinstance(event, LateReportRejected | CommandRefused) for event in decision.events)
            assert rows(self.execution)[1] == before[1], "a refused command changed a run"
        if not decision.events:
            assert rows(self.execution) == before, "a row changed without an event"
        self.take(decision.events, before[1])
        return decision

    def take(self, events: Sequence[Event], runs_before: Sequence[RowValues] = ()) -> None:
        """Append emitted events to the journal."""
        if events:
            self._store(events)
            self.snapshots.appended(self.execution, events)
        self.effects = [effect for event in events for effect in effects(self.execution, event)]
        # The caller of the core writes the rows of the runs that the events name, and no others.
        named = {getattr(event, "run", 0) for event in events}
        for run, row in zip(self.execution.runs, runs_before, strict=False):
            assert run.number in named or run_row(self.execution, run) == row, "a row changed unnamed"
        check(self)

    def _store(self, events: Sequence[Event]) -> None:
        first_seq = len(self.journal) + 1
        encoded = [encode_event(event) for event in events]
        self.stored.append(seal(EXECUTION_ID, first_seq, self.execution.epoch, self.now, encoded))
        stored = unseal(self.stored[-1])
        assert [(each.seq, each.event) for each in stored] == list(enumerate(events, first_seq))
        self.journal += events

    def start(self, **more: Any) -> Any:
        """Start it. `more` may have fields of the origin and of the command."""
        asked: Any = {"workspace": "default", "workflow": "story", "version": 1, "version_id": "story-v1"}
        asked |= {"create_time": self.now} | {name: more.pop(name) for name in _ORIGIN & more.keys()}
        command: Any = {"epoch": 1, "holder": "c1", "origin": Origin(**asked)} | more
        return self.when(Start(**command))

    def assign(self, *ids: str, instance: str = "i1", is_idempotent: bool = False, is_rendering: bool = False) -> Any:
        """Lease the ready works of these nodes, or all that are ready."""
        works = [self.work(id) for id in ids] or list(self.execution.ready)
        runner = f"runner of {instance}"
        more: Any = {"is_idempotent": is_idempotent, "is_rendering": is_rendering}
        return self.when(Assign([AssignedRun(work, instance, runner, **more) for work in works]))

    def assign_works(self, works: Sequence[Any], instance: str = "i1") -> Any:
        return self.when(Assign([AssignedRun(work, instance, f"runner of {instance}") for work in works]))

    def succeed(self, id: str, output: Value = b'{"ok":true}', branch: str = "", *, item: int = 0) -> Any:
        run = self.run(id, item)
        return self.when(
            ReportSuccess(
                run=run.number,
                epoch=run.epoch,
                output=output,
                branch=branch,
                start_time=self.now - 2,
                end_time=self.now - 1,
                inputs_hash=b"i" * 32,
                config_hash=b"c" * 32,
                cost_tokens=3,
            )
        )

    def fail(
        self,
        id: str,
        error_class: ErrorClass = ErrorClass.PERMANENT,
        random: float = 1.0,
        retry_after: int = 0,
        *,
        item: int = 0,
    ) -> Any:
        run = self.run(id, item)
        error = Error(error_class, "BOOM", f"{id} went wrong 42 times")
        return self.when(ReportFailure(run.number, run.epoch, error, random, retry_after))

    def do(self, *ids: str) -> None:
        """Lease these nodes and let them succeed, one after the other."""
        for id in ids:
            self.assign(id)
            self.succeed(id)

    def lose(self, instance: str = "i1", *, is_idempotent_only: bool = False, has_begun_runs: bool = False) -> Any:
        return self.when(LoseRunner(instance, is_idempotent_only, has_begun_runs))

    def release(self, id: str, reason: ReleaseReason = ReleaseReason.DRAINED, may_have_begun: bool = False) -> Any:
        return self.release_run(self.run(id), reason, may_have_begun)

    def release_run(self, run: Any, reason: ReleaseReason = ReleaseReason.DRAINED, may_have_begun: bool = False) -> Any:
        return self.when(Release(run.number, run.epoch, reason, may_have_begun))

    def stopped(self, id: str, item: int = 0) -> Any:
        run = self.run(id, item)
        return self.when(ReportStopped(run.number, run.epoch, start_time=self.now - 2, end_time=self.now - 1))

    def hold_back(self, id: str, target: str = "crm", until: int = 0) -> Any:
        """The runner of the node hands its run back, because the circuit of the target is open."""
        run = self.run(id)
        return self.when(ReportHeldBack(run.number, run.epoch, target, until))

    def let_through(self, *ids: str, is_probe: bool = False) -> Any:
        return self.when(LetThrough([self.work(id).key for id in ids], is_probe))

    def cancel(self, message_id: str = "m1") -> Any:
        return self.when(Cancel(message_id, "enough", "ann"))

    def pause(self, message_id: str = "pause1") -> Any:
        return self.when(Pause(message_id, "ann", "look first"))

    def resume(self, message_id: str = "resume1") -> Any:
        return self.when(Resume(message_id, "bob"))

    def retry(self, from_node: str = "", message_id: str = "retry1", **overrides: bytes) -> Any:
        """Under the lease of another holder if the execution has ended."""
        lease: Any = {"epoch": self.execution.epoch + 1, "holder": "c3"}
        return self.when(Retry(message_id, "ann", from_node, overrides, **lease))

    def give(self, make: Any, *fields: Any, message_id: str = "c1") -> Any:
        """A command of a person that may come after the end."""
        lease: Any = {"epoch": self.execution.epoch + 1, "holder": "c3"}
        return self.when(make(message_id, "ann", *fields, **lease))

    def adopt(self, *live: str, epoch: int = 2, wake_time: int = 0, grant_time: int = 0) -> Any:
        return self.when(Adopt(epoch, "c2", frozenset(live), wake_time, grant_time))

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
        return self.execution.target_of(id)

    def run(self, id: str, item: int = 0) -> Any:
        """The last run of a node, or of the item with this iteration."""
        runs = reversed(self.execution.runs)
        return next(run for run in runs if run.work.key[:2] == (id, item))

    @property
    def ready_items(self) -> list[int]:
        """The iterations of the works that are ready."""
        return [work.key.iteration for work in self.execution.ready]

    @property
    def ready(self) -> list[str]:
        return [work.node.id for work in self.execution.ready]

    @property
    def state(self) -> str:
        return str(self.execution.state.value)

    @property
    def states(self) -> dict[str, str]:
        """The states by node. A node that was never mentioned is idle."""
        current = self.execution.current
        return {id: current[id].state.value if id in current else "IDLE" for id in self.definition.nodes}


def started(*nodes: Document, edges: Sequence[Document] = (), **more: Any) -> Story:
    """An execution of these nodes, or of one node `a`, that has begun and has no lease yet."""
    story = Story(nodes or [node("a")], edges, **more)
    story.start()
    return story


def begun(*nodes: Document, edges: Sequence[Document] = (), **more: Any) -> Story:
    """An execution of these nodes, or of one node `a`. All that is ready at first is leased."""
    story = started(*nodes, edges=edges, **more)
    story.assign()
    return story


def check(story: Story) -> None:
    execution = story.execution
    if execution.seq == 0:
        return
    again = fold(Execution(EXECUTION_ID, story.definition), story.journal)
    assert rows(again) == rows(execution), "the fold shows other rows"
    assert again.next_wake() == execution.next_wake()
    assert list(again.live) == list(execution.live)
    assert not execution.passed_over, "the decision is not complete"
    assert not execution.to_begin or execution.paused_by, "a control node did not begin"
    assert (again.owed, list(again.children)) == (execution.owed, list(execution.children))
    _check_counts(execution)
    ends = [type(event) for event in story.journal if isinstance(event, ExecutionFinished | ExecutionReopened)]
    assert execution.is_final == (ends[-1:] == [ExecutionFinished])
    assert all(pair != (ExecutionFinished, ExecutionFinished) for pair in pairwise(ends)), "S7"
    if execution.is_final and not execution.is_ending:
        assert execution.error == execution.first_failure
        assert unsettled(execution) == []
    summed = sorted(id for ids in summary(execution)[:5] for id in ids)
    ids, states = [node.id for node in story.definition.graph], story.states
    assert summed == sorted(id for id in ids if execution.is_final or states[id] in _ENDED)


def _check_counts(execution: Execution) -> None:
    states = [work.state for work in execution.work.values()]
    assert len(execution.ready) == states.count(WorkState.READY)
    assert len(execution.live) == states.count(WorkState.LIVE)
    assert len(execution.waits) == states.count(WorkState.WAITING)
    assert len(execution.backoffs) == states.count(WorkState.BACKOFF)
    assert len(execution.held_back) == states.count(WorkState.HELD_BACK)
    _check_loops(execution)
    waiting = len(execution.waits) + len(execution.backoffs) + len(execution.held_back)
    going = len(execution.ready) + len(execution.live) + waiting
    going += len(execution.to_begin) + states.count(WorkState.LOOPING)
    assert execution.is_final == (going == 0), "it stands still"
    if going and not execution.live and not execution.ready and not execution.paused_by:
        has_message_wait = any(not wait.due for wait in execution.waits.values())
        is_at_store = execution.unread or execution.unstored
        # Whoever holds an execution looks at the circuits that its work waits for (app/circuits.py).
        is_woken = has_message_wait or is_at_store or execution.held_back
        assert execution.next_wake() or is_woken, "nothing would ever wake it"


def _check_loops(execution: Execution) -> None:
    """A loop under way has items under way, or waits, or waits for the output store."""
    for key, loop in execution.loops.items():
        going = [each for each in loop.going.values() if each.loop is loop]
        assert len(going) == len(loop.going) <= loop.parallel_max
        # An item that is a child does not begin while the execution is paused.
        assert all(each.state in _GOING or (execution.paused_by and each in execution.to_begin) for each in going)
        if execution.paused_by and loop.work in execution.to_begin:
            continue
        assert (loop.work.state is WorkState.LOOPING) != (key in execution.waits)
        assert bool(going) != (key in execution.waits or key in execution.unstored), "the loop stands still"


_GOING = (WorkState.READY, WorkState.LIVE, WorkState.BACKOFF, WorkState.WAITING, WorkState.HELD_BACK)
