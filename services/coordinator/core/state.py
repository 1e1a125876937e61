"""The state of an execution: the fold of its journal.

Only `fold.apply` writes the state; everything else reads it. Applying an event touches the edges of the work that the
event names and nothing else, so a fan-out of a thousand folds in linear time.

    Work   a piece of work, by its key. All attempts at it share it.
    Run    one attempt at a piece of work, or the one passing of a control node or a skipped node. Each has a row.
    Wait   what a control node waits for.

The life of work that a runner does:

    IDLE ──ready──► READY ──RunLeased──► LIVE ──RunSucceeded──────────► SUCCEEDED
                     ▲  ▲                 ├──RunFailed with a reason──► FAILED
                     │  └──lost, released─┤
                     └───BackoffEnded── BACKOFF ◄──RunFailed with a retry time

A control node goes from IDLE (or LIVE, if a runner rendered its config) to BEGUN, perhaps to WAITING and back to
BEGUN, and then to SUCCEEDED or FAILED. Work that is never begun goes from IDLE to SKIPPED or BLOCKED. CANCELLED is what
the end of the execution leaves of the rest.

Hazard: the timers are a heap with stale entries, which are recognised when they come up. `next_timer` throws stale
entries away. That is the one change that reading makes, and nobody can see it.
"""

from collections import OrderedDict, deque
from enum import Enum
from heapq import heappop
from typing import NamedTuple, TypeAlias, assert_never

from services.coordinator.core.definition import Definition, Node
from services.coordinator.core.events import WaitKind
from services.coordinator.core.retry import DEFAULT_RETRY, RetryPolicy
from services.coordinator.core.values import Error, ExecutionState, Failure, Instant, Origin, RunState, Value, WorkKey


class WorkState(Enum):
    IDLE = "IDLE"
    READY = "READY"
    LIVE = "LIVE"
    BACKOFF = "BACKOFF"
    BEGUN = "BEGUN"
    WAITING = "WAITING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    BLOCKED = "BLOCKED"
    CANCELLED = "CANCELLED"


SETTLED = frozenset({WorkState.SUCCEEDED, WorkState.FAILED, WorkState.SKIPPED, WorkState.BLOCKED})


class Work:
    __slots__ = (
        "attempts",
        "blocked",
        "config",
        "cursor",
        "deaths",
        "failures",
        "first_time",
        "key",
        "may_have_run_before",
        "node",
        "output",
        "run",
        "state",
        "taken",
        "timer",
        "unresolved",
    )

    def __init__(self, key: WorkKey, node: Node) -> None:
        self.key = key
        self.node = node
        self.state = WorkState.IDLE
        # Edges into it: how many have not resolved yet, and how many resolved as TAKEN and as BLOCKED.
        self.unresolved = node.in_degree
        self.taken = 0
        self.blocked = 0
        # The newest run.
        self.run: Run | None = None
        # Granted so far. The next attempt's number is one more. Runs that were handed back count too, since a number is
        # granted only once.
        self.attempts = 0
        # Counted against the attempts of the retry policy.
        self.failures = 0
        # Counted against DEATHS_MAX.
        self.deaths = 0
        # When it was first granted: the retry budget counts from here.
        self.first_time: Instant = 0
        # The order of the backoff timer in force. 0: none.
        self.timer = 0
        self.may_have_run_before = False
        self.cursor = b""
        # The config of a control node as a runner rendered it.
        self.config = b""
        self.output: Value | None = None


class Run:
    """One attempt. It mirrors its row."""

    __slots__ = (
        "attempt",
        "branch",
        "config_hash",
        "cost_tokens",
        "create_time",
        "end_time",
        "epoch",
        "error",
        "fingerprint",
        "heartbeat_time",
        "inputs_hash",
        "instance_id",
        "is_answered",
        "is_idempotent",
        "is_late_noted",
        "number",
        "output",
        "progress",
        "progress_message",
        "retry_time",
        "runner",
        "start_time",
        "state",
        "timer",
        "traceparent",
        "work",
    )

    def __init__(self, number: int, work: Work, create_time: Instant, epoch: int) -> None:
        self.number = number
        self.work = work
        self.state = RunState.RUNNING
        self.create_time = create_time
        # The sequence number of the event that made the run.
        self.epoch = epoch
        # 0: the work was skipped.
        self.attempt = work.attempts
        # Empty: no runner has it.
        self.instance_id = ""
        self.runner = ""
        # Another runner may be given the work before this one's lease has run out.
        self.is_idempotent = False
        self.traceparent = ""
        self.start_time: Instant = 0
        self.end_time: Instant = 0
        self.heartbeat_time: Instant = 0
        # The order of the backstop timer in force. 0: none.
        self.timer = 0
        self.retry_time: Instant = 0
        self.progress = 0.0
        self.progress_message = ""
        self.output: Value | None = None
        self.branch = ""
        self.error: Error | None = None
        self.fingerprint = ""
        self.inputs_hash = b""
        self.config_hash = b""
        self.cost_tokens = 0
        # Its holder's report was accepted: the same report again is a repeat, not a late one.
        self.is_answered = False
        self.is_late_noted = False


class Wait:
    __slots__ = ("due", "kind", "timer", "work")

    def __init__(self, work: Work, kind: WaitKind, due: Instant) -> None:
        self.work = work
        self.kind = kind
        self.due = due
        # The order of the timer that ends the wait. 0: no time ends it, or it is over.
        self.timer = 0


class TimerKind(Enum):
    BACKOFF = "BACKOFF"
    WAIT = "WAIT"
    # The coordinator's own end of a run whose runner is silent about the timeout.
    BACKSTOP = "BACKSTOP"
    # The execution's own timeout.
    DEADLINE = "DEADLINE"
    # Runners that were told to stop are no longer waited for.
    ANSWER = "ANSWER"


Subject: TypeAlias = Work | Run | Wait


class Timer(NamedTuple):
    """Ordered by time, then by when it was set. The rest never takes part in a comparison."""

    due: Instant
    order: int
    kind: TimerKind
    subject: Subject | None = None


class Stop(NamedTuple):
    """The execution is ending: what it ends as, and until when runners may answer."""

    outcome: ExecutionState
    error: Failure
    answer_by: Instant


class ReportFinished(NamedTuple):
    """The dispatcher has to learn that the execution is finished. The end of the lease acknowledges it."""

    state: ExecutionState


Obligation: TypeAlias = ReportFinished


class Execution:
    """The state. `definition` is that of the version which the first event names."""

    __slots__ = (
        "backoffs",
        "begun",
        "cost_tokens",
        "current",
        "deadline",
        "definition",
        "duration",
        "end_time",
        "epoch",
        "error",
        "execution_id",
        "final_state",
        "first_failure",
        "grant_time",
        "holder",
        "live",
        "obligations",
        "origin",
        "output",
        "passed_over",
        "ready",
        "retries",
        "retry",
        "runs",
        "seq",
        "settled",
        "start_time",
        "stop",
        "timer_order",
        "timers",
        "waits",
        "work",
    )

    # Set by ExecutionStarted.
    origin: Origin

    def __init__(self, execution_id: str, definition: Definition) -> None:
        self.execution_id = execution_id
        self.definition = definition
        self.seq = 0
        self.epoch = 0
        self.holder = ""
        self.retry: RetryPolicy = DEFAULT_RETRY
        self.grant_time: Instant = 0
        self.start_time: Instant = 0
        self.deadline: Instant = 0
        # All work that was mentioned so far; and of each node the work of the newest generation.
        self.work: dict[WorkKey, Work] = {}
        self.current: dict[str, Work] = {}
        # How many nodes of the graph have an outcome.
        self.settled = 0
        # Work that wants a runner, first come first. Ordered so that taking from any place costs the same.
        self.ready: OrderedDict[Work, None] = OrderedDict()
        # Runs that a runner has, by number.
        self.live: dict[int, Run] = {}
        self.backoffs: dict[WorkKey, Work] = {}
        self.waits: dict[WorkKey, Wait] = {}
        # Control nodes that have to begin, and skipped or blocked work whose own edges have to resolve. Both are empty
        # when a decision is complete.
        self.begun: deque[Work] = deque()
        self.passed_over: deque[Work] = deque()
        # Run n is at n - 1: nothing is ever taken out.
        self.runs: list[Run] = []
        self.timers: list[Timer] = []
        self.timer_order = 0
        self.stop: Stop | None = None
        # The first node that failed with nobody to handle it: the execution ends as FAILED.
        self.first_failure: Failure | None = None
        self.obligations: list[Obligation] = []
        self.retries = 0
        self.cost_tokens = 0
        self.final_state: ExecutionState | None = None
        self.output: Value | None = None
        self.error: Failure | None = None
        self.end_time: Instant = 0
        self.duration = 0

    @property
    def is_final(self) -> bool:
        return self.final_state is not None

    @property
    def is_going(self) -> bool:
        """Something is under way or waited for: the execution cannot end yet."""
        return bool(self.live or self.ready or self.backoffs or self.waits or self.begun or self.passed_over)

    @property
    def only_waits(self) -> bool:
        """No runner has any of its work or is wanted for it."""
        return not self.live and not self.ready and bool(self.waits or self.backoffs)

    @property
    def state(self) -> ExecutionState:
        if self.final_state is not None:
            return self.final_state
        if self.seq == 0:
            return ExecutionState.PENDING
        return ExecutionState.WAITING if self.only_waits else ExecutionState.RUNNING

    def work_of(self, key: WorkKey) -> Work:
        """The work with this key. It is made when it is first mentioned."""
        work = self.work.get(key)
        if work is None:
            work = self.work[key] = Work(key, self.definition.nodes[key.node])
            if not key.iteration:
                self.current[key.node] = work
        return work

    def target_of(self, node_id: str) -> Work:
        """The work that an edge to this node counts for: that of the node's newest generation."""
        return self.current.get(node_id) or self.work_of(WorkKey(node_id))

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
    """Whether the subject of the timer has ended or was given another timer."""
    match timer.kind:
        case TimerKind.BACKOFF | TimerKind.WAIT:
            assert timer.subject is not None
            return timer.subject.timer != timer.order
        case TimerKind.BACKSTOP:
            assert timer.subject is not None
            return timer.subject.timer != timer.order or execution.stop is not None
        case TimerKind.DEADLINE:
            return execution.stop is not None
        case TimerKind.ANSWER:
            return not execution.live
        case _:
            assert_never(timer.kind)


class Summary(NamedTuple):
    """Every node of the graph by id, in exactly one of the four."""

    succeeded: tuple[str, ...]
    failed: tuple[str, ...]
    skipped: tuple[str, ...]
    # Held up by a failure, never begun, or stopped because the execution ended.
    blocked: tuple[str, ...]


def summary(execution: Execution) -> Summary:
    succeeded: list[str] = []
    failed: list[str] = []
    skipped: list[str] = []
    blocked: list[str] = []
    places = {WorkState.SUCCEEDED: succeeded, WorkState.FAILED: failed, WorkState.SKIPPED: skipped}
    for node in execution.definition.graph:
        work = execution.current.get(node.id)
        place = blocked if work is None else places.get(work.state, blocked)
        place.append(node.id)
    return Summary(tuple(succeeded), tuple(failed), tuple(skipped), tuple(blocked))
