"""The state of an execution: the fold of its journal.

Only `fold.apply` writes the state; everything else reads it. Applying an event touches the edges of the work that the
event names and nothing else, so a fan-out of a thousand folds in linear time.

    Work      a piece of work, by its key. All attempts at it share it.
    Run       one attempt at a piece of work, or the one passing of a control node or a skipped node. Each has a row.
    Wait      what a control node waits for, or work that somebody else finishes.
    WorkLoop  a control node that has items: work with the key of the loop, and the iterations 1, 2, 3 and so on.

The life of work that a runner does:

    IDLE ──ready──► READY ──RunLeased──► LIVE ──RunSucceeded──────────► SUCCEEDED
                     ▲  ▲                 ├──RunFailed with a reason──► FAILED
                     │  └──lost, released─┤
                     └───BackoffEnded── BACKOFF ◄──RunFailed with a retry time

Work that its module hands to somebody else goes from LIVE to WAITING by RunDeferred, and on from there as if it were
LIVE, when it was answered (OutsideAnswered) or its time is over (WaitEnded).

Work whose target must not be called now goes from READY or LIVE to HELD_BACK, and back to READY when the circuit of
the target lets it through (circuits.py).

A control node goes from IDLE (or LIVE, if a runner rendered its config) to BEGUN, perhaps to WAITING and back to
BEGUN, and then to SUCCEEDED or FAILED. A loop is LOOPING while its items are under way, and BEGUN again when it has to
decide how it goes on. Work that is never begun goes from IDLE to SKIPPED or BLOCKED. If the execution is ended first,
work without an outcome becomes CANCELLED, or stays IDLE if its turn had not come.

Work that failed for good in a workflow that holds failures is HELD until the event that follows at once. Then it is
WAITING for a person.

Hazards: the timers are a heap with stale entries, which are recognised when they come up. `next_timer` throws stale
entries away, and `target_of` makes the idle work of a node that is mentioned for the first time. These are the only
changes that reading makes, and no later answer depends on them.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop
from typing import NamedTuple, TypeAlias, assert_never

from services.coordinator.core.approvals import Approval
from services.coordinator.core.definition import Definition, Node
from services.coordinator.core.events import WaitKind
from services.coordinator.core.retry import DEATH_PAUSE, DEFAULT_RETRY, RetryPolicy
from services.coordinator.core.values import (
    DeadLetterResolution,
    Error,
    ExecutionState,
    FailureReason,
    FinalError,
    Instant,
    Origin,
    RunState,
    Span,
    Value,
    WorkKey,
)


class WorkState(Enum):
    IDLE = "IDLE"
    READY = "READY"
    LIVE = "LIVE"
    BACKOFF = "BACKOFF"
    BEGUN = "BEGUN"
    WAITING = "WAITING"
    LOOPING = "LOOPING"
    HELD_BACK = "HELD_BACK"
    # It failed for good and is about to wait for a person.
    HELD = "HELD"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    BLOCKED = "BLOCKED"
    CANCELLED = "CANCELLED"


# The states with an outcome, in the order of `Summary`.
SETTLED = (WorkState.SUCCEEDED, WorkState.FAILED, WorkState.SKIPPED, WorkState.BLOCKED)


@dataclass(slots=True, eq=False, repr=False)
class Work:
    key: WorkKey
    node: Node
    # Edges into it: how many have not resolved yet, and how many resolved as TAKEN and as BLOCKED.
    unresolved: int
    taken: int = 0
    blocked: int = 0
    state: WorkState = WorkState.IDLE
    # The newest run.
    run: "Run | None" = None
    # Granted so far. The next attempt's number is one more. Runs that were handed back count too, since a number is
    # granted only once.
    attempts: int = 0
    # Counted against the attempts of the retry policy.
    failures: int = 0
    # The runner instances that died with it, each once. Their number counts against DEATHS_MAX. Those that died while
    # they rendered it for another runner count until it is rendered.
    dead_instances: tuple[str, ...] = ()
    # It was spared the charge for a death already, which happens once, and once more after it was rendered.
    was_spared: bool = False
    # The node whose outcome let it begin, if it sees the state of one path alone.
    begun_by: str | None = None
    # Counted against HAND_BACKS_MAX.
    hand_backs: int = 0
    # The instances that handed it back lately, each with the time before which it is not granted the work again.
    barred: tuple[tuple[str, Instant], ...] = ()
    # When it was first granted: the retry budget counts from here.
    first_time: Instant = 0
    # The order of the backoff timer in force. 0: none.
    timer: int = 0
    may_have_run_before: bool = False
    cursor: bytes = b""
    # A JSON object that a person has laid over its inputs.
    overrides: bytes = b""
    # The config of a control node as a runner rendered it.
    config: Value = b""
    # The inputs and the config as a runner rendered them for one that does not render.
    rendered: Value | None = None
    output: Value | None = None
    # The newest execution that it has started.
    child_execution_id: str = ""
    # The loop that it is an item of.
    loop: "WorkLoop | None" = None

    @property
    def is_templated(self) -> bool:
        """Whoever is given it has to render templates."""
        return self.node.has_templates and (self.rendered is None or bool(self.node.until))

    def is_barred(self, instance_id: str, now: Instant) -> bool:
        """The runner has handed the work back and is not granted it yet."""
        return any(name == instance_id and now < until for name, until in self.barred)

    def has_died_with(self, runner: str, now: Instant) -> bool:
        """A runner of this name has just gone away with the work."""
        run = self.run
        is_after_death = bool(self.dead_instances or self.was_spared)
        return is_after_death and run is not None and run.runner == runner and now < run.end_time + DEATH_PAUSE


@dataclass(slots=True, eq=False, repr=False)
class Run:
    """One attempt. It mirrors its row."""

    number: int
    work: Work
    state: RunState
    # 0: the work was skipped, or the runner only renders it for another one.
    attempt: int
    create_time: Instant
    # The sequence number of the event that made the run.
    epoch: int
    # Empty: no runner has it.
    instance_id: str = ""
    runner: str = ""
    # Another runner may be given the work before this one's lease has run out.
    is_idempotent: bool = False
    traceparent: str = ""
    start_time: Instant = 0
    end_time: Instant = 0
    heartbeat_time: Instant = 0
    # The order of the backstop timer in force. 0: none.
    timer: int = 0
    retry_time: Instant = 0
    progress: float = 0.0
    progress_message: str = ""
    output: Value | None = None
    branch: str = ""
    error: Error | None = None
    fingerprint: str = ""
    inputs_hash: bytes = b""
    config_hash: bytes = b""
    cost_tokens: int = 0
    # Its holder's report was accepted: the same report again is a repeat, not a late one.
    is_answered: bool = False
    is_late_noted: bool = False

    @property
    def is_rendering(self) -> bool:
        """The runner only renders, which has no effect and is no attempt."""
        return not self.attempt

    @property
    def is_taken_back(self) -> bool:
        """The run ended without a word of its runner, which may not know it."""
        return bool(self.instance_id and self.end_time) and not self.is_answered


class ChildExecution(NamedTuple):
    """The execution that a node starts, and what it is started with."""

    execution_id: str
    workflow: str
    # 0: the newest one.
    version: int
    input: bytes
    # 0: none but that of its own workflow.
    deadline: Instant
    is_cancelled_with_parent: bool
    # The work that waits for it, and its run.
    key: WorkKey
    run: int


@dataclass(slots=True, eq=False, repr=False)
class DeadLetter:
    """A run that failed for good with nobody to handle it. It mirrors its row."""

    run: Run
    reason: FailureReason
    quarantine_time: Instant
    # The config and the inputs as a runner rendered them. Empty: they are as in the definition, or not known.
    rendered: bytes = b""
    resolution: DeadLetterResolution = DeadLetterResolution.PENDING
    resolve_time: Instant = 0
    # Title of the key of whoever resolved it.
    reviewer: str = ""
    notes: str = ""


@dataclass(slots=True, eq=False, repr=False)
class Wait:
    work: Work
    kind: WaitKind
    due: Instant
    # The order of the timer that ends the wait. 0: no time ends it, or it is over.
    timer: int = 0
    # Set while a child is waited for.
    child: ChildExecution | None = None
    # The signal that is waited for. Waits of other kinds have none.
    name: str = ""


class KeptSignal(NamedTuple):
    """A signal that no node has taken yet."""

    signal: str
    # JSON.
    payload: bytes


@dataclass(slots=True, eq=False, repr=False)
class WorkLoop:
    """A loop that is under way. An event about an item costs the same however many items there are."""

    # The loop's own work, which has the iteration 0.
    work: Work
    # How many items it has, or how many turns it may take.
    count: int
    parallel_max: int
    # An item that fails does not end the loop.
    continues_on_failure: bool
    # The pause between two turns.
    delay: Span
    # The items of a list, each as JSON. They are taken from the config when they are needed first, or read from the
    # output store (`core/items.py`). A loop without a list has none.
    items: Sequence[bytes] = ()
    # Items begin in their order: those up to this number have begun.
    begun: int = 0
    # The items that have begun and have no outcome, by iteration.
    going: dict[int, Work] = field(default_factory=dict)
    # The first item that failed.
    failed: Work | None = None
    # The size of the outputs of all items so far.
    output_bytes: int = 0

    def key_of(self, iteration: int) -> WorkKey:
        key = self.work.key
        return WorkKey(key.node, iteration, key.generation)


@dataclass(slots=True, eq=False, repr=False)
class CircuitHold:
    """Work that waits for the circuit of its target, or was let through by it."""

    work: Work
    target: str
    # The circuit is not expected to let the work through before.
    until: Instant
    # The time at which the wait began.
    since: Instant
    # The order of the timer that ends the wait with a failure. 0: the wait is over, or lasts as long as it takes.
    timer: int = 0
    # It was let through with a permit of a half-open circuit, and its attempt has no outcome yet.
    is_probe: bool = False


class TimerKind(Enum):
    BACKOFF = "BACKOFF"
    WAIT = "WAIT"
    # The coordinator's own end of a run whose runner is silent about the timeout.
    BACKSTOP = "BACKSTOP"
    # The execution's own timeout.
    DEADLINE = "DEADLINE"
    # Runners that were told to stop are no longer waited for.
    ANSWER = "ANSWER"
    # The retry budget of work that is held back is over.
    GIVE_UP = "GIVE_UP"


# These wait while the execution is paused.
HELD_BY_PAUSE = (TimerKind.BACKOFF, TimerKind.WAIT, TimerKind.GIVE_UP)

Subject: TypeAlias = Work | Run | Wait | CircuitHold


class Timer(NamedTuple):
    """Ordered by time, then by when it was set. The rest never takes part in a comparison."""

    due: Instant
    order: int
    kind: TimerKind
    subject: Subject | None = None


class Stop(NamedTuple):
    """The execution is ending as this."""

    outcome: ExecutionState
    error: FinalError


class Setting(NamedTuple):
    """A key of the workflow's state has this value."""

    value: bytes
    # The node that set it.
    node: str


class Conflict(NamedTuple):
    """Two nodes, none of which comes before the other, have set the key to different values."""

    key: str
    nodes: tuple[str, str]


# What nodes have set, as it is seen from one place of the graph.
Settings: TypeAlias = Mapping[str, Setting]


class Compensation(NamedTuple):
    """The execution ends as this once its work is undone."""

    outcome: ExecutionState
    error: FinalError
    # For each compensation, but the last, the one that follows it.
    next: Mapping[WorkKey, WorkKey]


class PausedBy(NamedTuple):
    caller: str
    reason: str
    time: Instant


class Answer(NamedTuple):
    """The answer to a command of a person. If it has no reason, the command took effect."""

    reason: str = ""
    message: str = ""
    # The digest of the command's content. Empty: its message id has none.
    digest: str = ""


class StartChild(NamedTuple):
    """The child has to be queued. ChildStarted and ChildRefused acknowledge it, and so does the end of the child."""

    child: ChildExecution


class CancelChild(NamedTuple):
    """The child has to learn that nobody waits for it. ChildCancelTold acknowledges it, and so does the end of the
    lease."""

    execution_id: str
    key: WorkKey
    run: int


class TellParent(NamedTuple):
    """The end has to be in the mailbox of the parent before the lease ends. The end of the lease acknowledges it."""

    execution_id: str


class ReportFinished(NamedTuple):
    """The dispatcher has to learn that the execution is finished. The end of the lease acknowledges it."""

    state: ExecutionState


Obligation: TypeAlias = StartChild | CancelChild | TellParent | ReportFinished


@dataclass(slots=True, eq=False, repr=False)
class Execution:
    """The state. `definition` is that of the version which the first event names."""

    execution_id: str
    definition: Definition
    # Set by ExecutionStarted.
    origin: Origin = field(init=False)
    seq: int = 0
    epoch: int = 0
    holder: str = ""
    retry: RetryPolicy = DEFAULT_RETRY
    grant_time: Instant = 0
    start_time: Instant = 0
    deadline: Instant = 0
    # The deadline counts from here: the creation, or the last reopening.
    deadline_from: Instant = 0
    # All work that was mentioned so far; and of each node the work of the newest generation.
    work: dict[WorkKey, Work] = field(default_factory=dict)
    current: dict[str, Work] = field(default_factory=dict)
    # Work that wants a runner, first come first. Ordered so that taking from any place costs the same.
    ready: OrderedDict[Work, None] = field(default_factory=OrderedDict)
    # Runs that a runner has, by number.
    live: dict[int, Run] = field(default_factory=dict)
    backoffs: dict[WorkKey, Work] = field(default_factory=dict)
    # The workflow's state after nodes that change it, once it was asked for (`workflow_state.py`). It follows from the
    # rest of the state, so it is no part of a comparison.
    state_views: dict[WorkKey, Settings] = field(default_factory=dict)
    waits: dict[WorkKey, Wait] = field(default_factory=dict)
    loops: dict[WorkKey, WorkLoop] = field(default_factory=dict)
    # Loops that have not started, because their config is in the output store.
    unread: dict[WorkKey, Work] = field(default_factory=dict)
    # Loops whose items are all done, and whose output has to be put into the output store.
    unstored: dict[WorkKey, WorkLoop] = field(default_factory=dict)
    # Signals that came before a node waited for them, oldest first, by the sequence numbers of their events.
    signals: dict[int, KeptSignal] = field(default_factory=dict)
    # All approvals that were ever requested, by the numbers of their runs.
    approvals: dict[int, Approval] = field(default_factory=dict)
    # Work that waits for the circuit of its target, in the order in which it began to wait; and work that was let
    # through, whose target is known therefore.
    held_back: dict[WorkKey, CircuitHold] = field(default_factory=dict)
    let_through: dict[WorkKey, CircuitHold] = field(default_factory=dict)
    # Control nodes that have yet to begin, and skipped or blocked work whose own edges have yet to resolve. Both are
    # empty when a decision is complete, but no control node begins while the execution is paused.
    to_begin: deque[Work] = field(default_factory=deque)
    passed_over: deque[Work] = field(default_factory=deque)
    # Run n is at n - 1: nothing is ever taken out.
    runs: list[Run] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    timer_order: int = 0
    paused_by: PausedBy | None = None
    # The timers that wait while it is paused.
    held_timers: list[Timer] = field(default_factory=list)
    # The answers to the newest commands of people: by the kind of the command, then by request, oldest first
    # (`fold/answers.py`).
    answers: dict[str, OrderedDict[str, Answer]] = field(default_factory=dict)
    stop: Stop | None = None
    # Work that has succeeded and can be undone, in the order in which it succeeded.
    compensable: list[Work] = field(default_factory=list)
    compensation: Compensation | None = None
    # The dead letters, by the number of the run.
    dead_letters: dict[int, DeadLetter] = field(default_factory=dict)
    # The first node that failed with nobody to handle it: the execution ends as FAILED.
    first_failure: FinalError | None = None
    # The waits for children, by the id of the child; the children that are not known to be queued, though perhaps
    # nobody waits for them any more; and the cancels of children that are not known to have arrived.
    children: dict[str, Wait] = field(default_factory=dict)
    unstarted: dict[str, ChildExecution] = field(default_factory=dict)
    uncancelled: dict[str, CancelChild] = field(default_factory=dict)
    # What is owed when the execution is final, in the order in which it has to be done.
    obligations: list[Obligation] = field(default_factory=list)
    retries: int = 0
    cost_tokens: int = 0
    final_state: ExecutionState | None = None
    output: Value | None = None
    error: FinalError | None = None
    end_time: Instant = 0
    # The event with which it has ended last, perhaps before it was reopened. 0: it has not ended.
    end_seq: int = 0

    def __del__(self) -> None:
        # A work and its newest run refer to each other, and would stay in memory until the next collection of garbage.
        for run in self.runs:
            run.work.run = None

    @property
    def is_final(self) -> bool:
        return self.final_state is not None

    @property
    def is_ending(self) -> bool:
        """What it ends as is decided. Before that runners stop, or finished work is undone."""
        return self.stop is not None or self.compensation is not None

    @property
    def is_going(self) -> bool:
        """Something is under way or waited for: the execution cannot end yet."""
        has_work = self.live or self.ready or self.backoffs or self.waits or self.to_begin or self.passed_over
        return bool(has_work or self.loops or self.unread or self.held_back)

    @property
    def only_waits(self) -> bool:
        """No runner has any of its work or is wanted for it."""
        if self.live or self.unread or self.unstored:
            return False
        has_waits = bool(self.waits or self.backoffs or self.held_back)
        return self.paused_by is not None or (not self.ready and has_waits)

    @property
    def state(self) -> ExecutionState:
        if self.final_state is not None:
            return self.final_state
        if self.seq == 0:
            return ExecutionState.PENDING
        if self.paused_by is not None:
            return ExecutionState.PAUSED
        return ExecutionState.WAITING if self.only_waits else ExecutionState.RUNNING

    @property
    def owed(self) -> list[Obligation]:
        """What others have yet to be told, in the order in which they have to be told."""
        return [*map(StartChild, self.unstarted.values()), *self.uncancelled.values(), *self.obligations]

    def work_of(self, key: WorkKey) -> Work:
        """The work with this key. It is made when it is first mentioned."""
        work = self.work.get(key)
        if work is None:
            node = self.definition.nodes[key.node]
            if key.iteration:
                return self._new_item(key, node)
            work = self.work[key] = self.current[key.node] = Work(key, node, node.in_degree)
        return work

    def _new_item(self, key: WorkKey, node: Node) -> Work:
        loop = self.loops[WorkKey(key.node, 0, key.generation)]
        assert node.body is not None
        work = self.work[key] = loop.going[key.iteration] = Work(
            key, node.body, 0, overrides=loop.work.overrides, loop=loop
        )
        loop.begun = key.iteration
        return work

    def target_of(self, node_id: str) -> Work:
        """The work that an edge to this node counts for: that of the node's newest generation."""
        return self.current.get(node_id) or self.work_of(self.definition.nodes[node_id].key)

    def next_wake(self) -> Instant:
        """When `Tick` is due. 0: no time is waited for."""
        timer = self.next_timer()
        return 0 if timer is None else timer.due

    def next_timer(self) -> Timer | None:
        timers = self.timers
        while timers and is_stale(self, timers[0]):
            heappop(timers)
        return timers[0] if timers else None


def is_stale(execution: Execution, timer: Timer) -> bool:
    """The subject of the timer has ended or was given another timer, or the end of the execution made it void."""
    if timer.subject is not None and timer.subject.timer != timer.order:
        return True
    match timer.kind:
        case TimerKind.BACKOFF | TimerKind.WAIT | TimerKind.GIVE_UP:
            return False
        case TimerKind.BACKSTOP:
            return execution.stop is not None
        case TimerKind.DEADLINE:
            return execution.stop is not None or execution.compensation is not None
        case TimerKind.ANSWER:
            # The runs of a compensation were not told to stop.
            return execution.stop is None or not execution.live
        case _:
            assert_never(timer.kind)


def unsettled(execution: Execution) -> list[str]:
    """The nodes of the graph whose newest work has no outcome yet. The items of a loop and the work of an earlier
    generation do not count, since only the newest work decides about the node."""
    current = execution.current
    return [
        node.id
        for node in execution.definition.graph
        if (work := current.get(node.id)) is None or work.state not in SETTLED
    ]
