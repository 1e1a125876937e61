"""What an execution has come to: the fold of its journal.

Written by `evolve` alone, in place, at a cost that does not grow with the execution: a node that settles touches its
own edges and nothing else, so a thousand-fold fan-out folds in linear time. Everything else reads.

    Work   the piece of work: (node, iteration, generation). Its attempts share it.
    Run    one attempt at it, or the one passing of a control or skipped node. A row of its own, for ever.

A work's life, for nodes that a runner does:

    IDLE ─edges─► READY ─RunLeased─► LIVE ─RunSucceeded─► SUCCEEDED
                   ▲  ▲               ├─RunFailed, final─► FAILED
                   │  └─Lost/Released─┤
                   └──BackoffEnded── BACKOFF ◄─RunFailed─┘

A control node goes from IDLE (or, rendered first, LIVE) to HELD and SUCCEEDED by its own events. IDLE ends in SKIPPED
or BLOCKED without a start; CANCELLED is what the end of the execution leaves of the rest.

Hazards: the timers are a heap with stale entries, recognised when they surface; `next_wake` throws those away, which is
the one thing that reading changes and nobody can see.
"""

from collections import OrderedDict
from enum import Enum
from heapq import heappop
from typing import NamedTuple, assert_never

from services.coordinator.core.definition import Definition, Node
from services.coordinator.core.retry import DEFAULT_RETRY, RetryPolicy
from services.coordinator.core.values import (
    Error,
    ExecutionState,
    Failure,
    Instant,
    RunState,
    Value,
)


class WorkState(Enum):
    IDLE = "IDLE"
    READY = "READY"
    LIVE = "LIVE"
    BACKOFF = "BACKOFF"
    HELD = "HELD"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    BLOCKED = "BLOCKED"
    CANCELLED = "CANCELLED"


class Work:
    """One node's work in one iteration and generation."""

    __slots__ = (
        "attempts",
        "cursor",
        "deaths",
        "failures",
        "first_time",
        "generation",
        "iteration",
        "may_have_run_before",
        "node",
        "output",
        "state",
        "timer",
    )

    def __init__(self, node: Node, iteration: int = 0, generation: int = 1) -> None:
        self.node = node
        self.iteration = iteration
        self.generation = generation
        self.state = WorkState.IDLE
        # Granted so far; the next attempt's number is one more. Hand-backs count here, since numbers are granted once.
        self.attempts = 0
        # Counted against the policy's attempts.
        self.failures = 0
        # Counted against DEATHS_MAX.
        self.deaths = 0
        # Of the first grant: the budget counts from here.
        self.first_time: Instant = 0
        # The order of the timer in force. 0: none.
        self.timer = 0
        self.may_have_run_before = False
        self.cursor = b""
        self.output: Value | None = None


class Run:
    """One attempt; mirrors its row."""

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

    def __init__(self, number: int, work: Work, state: RunState, create_time: Instant, epoch: int) -> None:
        self.number = number
        self.work = work
        self.state = state
        self.create_time = create_time
        self.epoch = epoch
        # 0: passed without being granted (skipped).
        self.attempt = work.attempts
        # Empty: no runner has it.
        self.instance_id = ""
        self.runner = ""
        # Another may be given the work before this one's lease has run out.
        self.is_idempotent = False
        self.traceparent = ""
        self.start_time: Instant = 0
        self.end_time: Instant = 0
        self.heartbeat_time: Instant = 0
        # The order of the timer in force: the backstop behind the node's timeout, or the end of a sleep. 0: none.
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


class TimerKind(Enum):
    BACKOFF = "BACKOFF"
    SLEEP = "SLEEP"
    BACKSTOP = "BACKSTOP"
    DEADLINE = "DEADLINE"
    ANSWER = "ANSWER"


class Timer(NamedTuple):
    """Ordered by time, then by when it was set; the rest never takes part in a comparison."""

    due: Instant
    order: int
    kind: TimerKind
    subject: Work | Run | None = None


class Stop(NamedTuple):
    """The execution is ending: what it ends as, and until when the runners may answer."""

    outcome: ExecutionState
    error: Failure
    answer_by: Instant


class Execution:
    """The state. `definition` is that of the version which its first event names."""

    __slots__ = (
        "blocked",
        "caller",
        "cost_tokens",
        "create_time",
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
        "held",
        "holder",
        "input",
        "is_output_requested",
        "labels",
        "live",
        "output",
        "parent_execution_id",
        "priority",
        "ready",
        "request_id",
        "retries",
        "retry",
        "runs",
        "seq",
        "start_time",
        "stop",
        "taken",
        "timer_order",
        "timers",
        "traceparent",
        "trigger_type",
        "unresolved",
        "unsettled",
        "version",
        "version_id",
        "waiting",
        "workflow",
        "works",
        "workspace",
    )

    def __init__(self, execution_id: str, definition: Definition) -> None:
        self.execution_id = execution_id
        self.definition = definition
        self.seq = 0
        self.epoch = 0
        # What was asked for; set by ExecutionStarted.
        self.holder = self.workspace = self.workflow = self.version_id = self.caller = self.request_id = ""
        self.parent_execution_id = self.traceparent = ""
        self.version = self.priority = self.trigger_type = 0
        self.input = b"{}"
        self.labels: tuple[tuple[str, str], ...] = ()
        self.retry: RetryPolicy = DEFAULT_RETRY
        self.create_time: Instant = 0
        self.grant_time: Instant = 0
        self.start_time: Instant = 0
        self.deadline: Instant = 0
        # The graph, by node number: edges into it that are unresolved, taken, blocked.
        nodes = definition.nodes
        self.works: list[Work] = [Work(node) for node in nodes]
        self.unresolved: list[int] = [node.in_degree for node in nodes]
        self.taken: list[int] = [0] * len(nodes)
        self.blocked: list[int] = [0] * len(nodes)
        # Nodes of the graph that are not settled yet.
        self.unsettled = definition.size
        # Works that want a runner, first come first. Ordered so that taking from any place costs the same.
        self.ready: OrderedDict[Work, None] = OrderedDict()
        # By number: with a runner now; and held by the core itself (sleeping).
        self.live: dict[int, Run] = {}
        self.held: dict[int, Run] = {}
        # Works in backoff.
        self.waiting = 0
        # Run n is at n−1: nothing is ever taken out.
        self.runs: list[Run] = []
        self.timers: list[Timer] = []
        self.timer_order = 0
        self.is_output_requested = False
        self.stop: Stop | None = None
        # Of the first node that failed with nobody to handle it: the execution ends as FAILED.
        self.first_failure: Failure | None = None
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
    def state(self) -> ExecutionState:
        if self.final_state is not None:
            return self.final_state
        if self.seq == 0:
            return ExecutionState.PENDING
        if not self.live and not self.ready and (self.waiting or self.held):
            return ExecutionState.WAITING
        return ExecutionState.RUNNING

    def next_wake(self) -> Instant:
        """When `Tick` is due; 0: nothing is waited for."""
        timers = self.timers
        while timers:
            if not is_stale(self, timers[0]):
                return timers[0].due
            heappop(timers)
        return 0


def is_stale(execution: Execution, timer: Timer) -> bool:
    """What it was set for is over, or was set anew."""
    match timer.kind:
        case TimerKind.BACKOFF | TimerKind.SLEEP | TimerKind.BACKSTOP:
            assert timer.subject is not None
            return timer.subject.timer != timer.order
        case TimerKind.DEADLINE:
            return execution.stop is not None
        case TimerKind.ANSWER:
            return False
        case _:
            assert_never(timer.kind)


def due_timers(execution: Execution, now: Instant) -> list[Timer]:
    """All that are due, oldest first, without taking them out: deciding changes nothing."""
    timers = execution.timers
    due: list[Timer] = []
    # In a heap nothing below a timer is earlier than it, so only due ones are looked at, and their children.
    places = [0]
    for place in places:
        if place < len(timers) and timers[place].due <= now:
            if not is_stale(execution, timers[place]):
                due.append(timers[place])
            places += (2 * place + 1, 2 * place + 2)
    due.sort()
    return due


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
    for work in execution.works[: execution.definition.size]:
        places.get(work.state, blocked).append(work.node.id)
    return Summary(tuple(succeeded), tuple(failed), tuple(skipped), tuple(blocked))
