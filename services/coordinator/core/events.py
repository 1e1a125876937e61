"""The events of an execution, in the past tense: the vocabulary of the journal.

Together with `definition.py` these events are everything the state is made of. Each event says what was decided and
what followed from it, so that folding needs no rule. Events are stored for ever: a field may be added with a default,
but no field ever changes its meaning (`protos/windlass/journal/v1` is the stored form, `store/event_table.py` the
translation).

`time` is when the event was decided, by the clock of the holder that decided it. The sequence number and the epoch are
not part of an event: its place in the journal is its number, and the epoch is that of the holder that appends it.

Hazard: events are mutable because frozen dataclasses are slower to make. Nobody changes an event after it was emitted.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple, TypeAlias

from services.coordinator.core.retry import RetryPolicy
from services.coordinator.core.values import (
    ApprovalChoice,
    ApprovalState,
    DeadLetterResolution,
    Error,
    ExecutionState,
    FailureReason,
    FinalError,
    Instant,
    Origin,
    OutputRef,
    ReleaseReason,
    Span,
    Value,
    WorkKey,
)


class WaitKind(StrEnum):
    """A wait is for one of these."""

    TIMER = "TIMER"
    SIGNAL = "SIGNAL"
    CHILD = "CHILD"
    APPROVAL = "APPROVAL"
    # Somebody else finishes the work of a run that was deferred.
    OUTSIDE = "OUTSIDE"
    # The work has failed for good, and a person decides what becomes of it.
    PERSON = "PERSON"


class WaitOutcome(StrEnum):
    """How a wait ended."""

    # The message or the answer that was waited for has come.
    ARRIVED = "ARRIVED"
    # The time that was set for the wait is over.
    EXPIRED = "EXPIRED"


class Resolution(IntEnum):
    """How an edge resolved."""

    TAKEN = 0
    SKIPPED = 1
    BLOCKED = 2


class Consequences(NamedTuple):
    """The outcome of a piece of work changed the graph in this way. It was judged once (`graph.judge`)."""

    # How each edge out of the node resolved: one Resolution per edge, in the order of the definition.
    edges: bytes = b""
    # Work that a runner can be given now.
    ready: tuple[WorkKey, ...] = ()
    # Control nodes whose join holds now. The events with which they begin follow, unless the execution is told to end
    # before.
    begun: tuple[WorkKey, ...] = ()
    # Work that no edge was taken to. A WorkSkipped follows for each, with the same exception.
    skipped: tuple[WorkKey, ...] = ()
    # Work that needs the success of something that failed. A WorkBlocked follows for each, with the same exception.
    blocked: tuple[WorkKey, ...] = ()


NOTHING_FOLLOWS = Consequences()


@dataclass(slots=True)
class WorkEvent:
    """An event about a piece of work."""

    time: Instant
    key: WorkKey


@dataclass(slots=True)
class RunEvent(WorkEvent):
    """An event about one attempt at the work. If it names the next free run number, it makes that run."""

    run: int


@dataclass(slots=True)
class ExecutionStarted:
    """The first event of every journal: all that was asked for, so that a take-over needs no other table."""

    time: Instant
    epoch: int
    holder: str
    origin: Origin
    # When the execution left the queue: the difference to `origin.create_time` is the time queued.
    grant_time: Instant
    # 0: none.
    deadline_time: Instant
    # This policy holds where neither node nor workflow says otherwise, for the whole life of the execution.
    retry: RetryPolicy
    # The roots of the graph.
    then: Consequences


@dataclass(slots=True)
class ExecutionAdopted:
    """Another holder, or the same one anew, goes on from here under a new epoch."""

    time: Instant
    epoch: int
    holder: str


@dataclass(slots=True)
class RunLeased(RunEvent):
    """A runner was given the work. The sequence number of this event is the epoch of the run's lease.

    Without an instance no runner can be given the work, and its failure follows in the same append.
    """

    # 0: the runner only renders for another one.
    attempt: int
    instance_id: str
    runner: str
    traceparent: str
    # The work may be done twice, because the node or the runner's module says so. It is kept here because whoever has
    # to know it no longer has that runner.
    is_idempotent: bool
    # When the coordinator ends the run if its runner stays silent about the node's timeout. 0: never.
    backstop_time: Instant


@dataclass(slots=True)
class RunStarted(RunEvent):
    """The runner said that the work began. Recorded only for runs that outlast a heartbeat."""

    start_time: Instant
    # Replaces that of the lease, because the timeout counts from the start.
    backstop_time: Instant


@dataclass(slots=True)
class RunProgressed(RunEvent):
    progress: float
    message: str
    # Handed to the next attempt, should there be one.
    cursor: bytes


@dataclass(slots=True)
class RunSucceeded(RunEvent):
    """The one accepted outcome of its work. A control node that is done at once has no other event."""

    output: Value
    branch: str
    start_time: Instant
    end_time: Instant
    inputs_hash: bytes
    config_hash: bytes
    cost_tokens: int
    then: Consequences


@dataclass(slots=True)
class ControlRendered(RunEvent):
    """A runner rendered the config of a control node. The core goes on with the node under the same run."""

    config: bytes
    start_time: Instant
    end_time: Instant
    # Set instead of `config` if the config is kept outside.
    stored: OutputRef | None = None


@dataclass(slots=True)
class WorkRendered(RunEvent):
    """A runner rendered the inputs and the config of work, for a runner that does not render. The work is ready again,
    and the run was no attempt."""

    # A JSON object with the members "config" and "inputs".
    rendered: Value
    start_time: Instant
    end_time: Instant
    then: Consequences


@dataclass(slots=True)
class RunFailed(RunEvent):
    """An attempt failed. Without a `reason` the work is tried again at `retry_time`; with one the work failed."""

    error: Error
    fingerprint: str
    start_time: Instant
    end_time: Instant
    inputs_hash: bytes
    config_hash: bytes
    cost_tokens: int
    # The failure counts against the attempts of the retry policy.
    is_charged: bool
    retry_time: Instant
    reason: FailureReason | None
    # A failure edge leaves the node, so the failure does not fail the execution.
    is_handled: bool
    # False: the coordinator decided so itself (no word from the runner after the node's timeout) and tells it to stop.
    is_reported: bool
    then: Consequences
    # The work failed, and waits for a person. A WaitStarted follows.
    is_held: bool = False


@dataclass(slots=True)
class RunLost(RunEvent):
    """The runner died with the work. Without a `reason` the work is ready again."""

    error: Error
    fingerprint: str
    reason: FailureReason | None
    is_handled: bool
    then: Consequences
    # The run had not begun while another run of the same instance had, so the work is not charged with the death.
    is_spared: bool = False
    # As in RunFailed.
    is_held: bool = False


@dataclass(slots=True)
class RunReleased(RunEvent):
    """The run was handed back, and nothing is charged. The work is ready again unless the execution is ending."""

    release: ReleaseReason
    may_have_begun: bool
    # False: the coordinator took the run back itself.
    is_reported: bool
    then: Consequences
    # The instance that handed the run back is not granted the work before this time. 0: it may be granted at once.
    again_time: Instant


@dataclass(slots=True)
class RunCancelled(RunEvent):
    """The run ended without an outcome because the execution, or the loop that it is an item of, is ending."""

    start_time: Instant
    end_time: Instant
    # False: nobody was at work on it, or nobody answered in time.
    is_reported: bool


@dataclass(slots=True)
class LateReportRejected(RunEvent):
    """Somebody reported on a run that they no longer have. Recorded once per run, so that a runner that was replaced
    cannot fill a journal."""

    epoch: int
    report: str


@dataclass(slots=True)
class BackoffEnded(WorkEvent):
    """The wait before the next attempt is over: the work is ready."""


@dataclass(slots=True)
class WaitStarted(RunEvent):
    """A control node waits. Its run is the one that rendered its config, or a new one."""

    kind: WaitKind
    # When the time ends the wait. 0: no time does.
    due_time: Instant
    # The signal that is waited for. Empty for the other kinds.
    name: str = ""


@dataclass(slots=True)
class WaitEnded(RunEvent):
    """The wait is over. What the control made of it follows in the same append."""

    outcome: WaitOutcome


@dataclass(slots=True)
class ItemsRequested(RunEvent):
    """The rendered config of a loop is in the output store. It has to be read before the loop starts or fails."""


@dataclass(slots=True)
class ItemsRead(RunEvent):
    """The config was read. The start or the outcome of the loop follows in the same append."""


@dataclass(slots=True)
class LoopStarted(RunEvent):
    """A control node began to loop over items, or to take turns."""

    # How many items there are, or how many turns it takes at most.
    count: int
    parallel_max: int
    # An item that fails does not end the loop.
    continues_on_failure: bool
    # Between two turns.
    delay: Span
    # The items that begin at once. Further ones begin with the outcomes of these.
    then: Consequences


@dataclass(slots=True)
class LoopContinued(RunEvent):
    """The wait between two turns is over."""

    # The turn that begins.
    then: Consequences


@dataclass(slots=True)
class LoopGathered(RunEvent):
    """All items are done, and their outputs together are too large to be inline. They have to be put into the output
    store."""


@dataclass(slots=True)
class LoopClosed(RunEvent):
    """No item begins any more. The outcome of the loop follows in the same append, after a RunCancelled for each item
    that is stopped."""

    # Items that were ready for a runner, awaited their next attempt, or were to begin.
    cancelled: tuple[WorkKey, ...]
    # Items that runners have, who are told to stop. Nobody waits for their answers.
    stopped: tuple[WorkKey, ...]


@dataclass(slots=True)
class ChildEvent(RunEvent):
    """An event about an execution that the work has started."""

    child_execution_id: str


@dataclass(slots=True)
class ChildRequested(ChildEvent):
    """A node that waits for a child wants this execution to be started. The start is owed until ChildStarted or
    ChildRefused, or until the child is over. Everything that it needs is here, also the id of the child, so each
    repetition asks for the same."""

    workflow: str
    # 0: the newest one when the child is started.
    version: int
    # A JSON object.
    input: bytes
    # 0: none but that of the child's own workflow.
    deadline_time: Instant
    # False: the child goes on when this execution ends before it.
    is_cancelled_with_parent: bool


@dataclass(slots=True)
class ChildStarted(ChildEvent):
    """The child is queued, which is durable."""


@dataclass(slots=True)
class ChildRefused(ChildEvent):
    """The child cannot be started, now or later. If the node still waits for it, its failure follows."""


@dataclass(slots=True)
class ChildCancelOrdered(ChildEvent):
    """Nobody waits for the child any more, so it has to be cancelled. It is owed until ChildCancelTold, or until this
    execution is over."""


@dataclass(slots=True)
class ChildCancelTold(ChildEvent):
    """The cancel is in the mailbox of the child, or the child is over."""


@dataclass(slots=True)
class SignalReceived:
    """A signal has come. It is kept until a node takes it; the sequence number of this event names it."""

    time: Instant
    message_id: str
    caller: str
    signal: str
    # JSON.
    payload: bytes


@dataclass(slots=True)
class SignalTaken(RunEvent):
    """A node takes a signal that has come. The signal is no longer kept."""

    # The sequence number of its SignalReceived.
    number: int


@dataclass(slots=True)
class ApprovalRequested(RunEvent):
    """People are asked to decide. The id of the approval is that of the run, and the time ends it with the wait that
    has begun before."""

    title: str
    # The JSON Schema of the form that is filled in at a decision.
    form: bytes
    # Titles of keys, and roles like "role:ADMIN". Empty: everybody who may decide at all.
    assignees: tuple[str, ...]
    # The number of keys that have to approve.
    required: int


@dataclass(slots=True)
class ApprovalDecided(RunEvent):
    """Somebody has decided. The first rejection, or the last approval that was required, ends the approval."""

    message_id: str
    # The title of the key, for people; and its id, because no key decides twice.
    caller: str
    key_id: str
    decision: ApprovalChoice
    # JSON that fits the form.
    form: bytes
    comment: str
    # How the approval ended by this decision. None: further decisions are needed.
    outcome: ApprovalState | None


@dataclass(slots=True)
class RunDeferred(RunEvent):
    """The runner has handed the work to somebody else, who has the completion token of the run. No runner has the run
    any more. It waits until it is answered or its time is over."""

    start_time: Instant
    # When the timeout of the node ends the run. 0: no time does.
    due_time: Instant
    inputs_hash: bytes
    config_hash: bytes
    cost_tokens: int


@dataclass(slots=True)
class OutsideAnswered(RunEvent):
    """Whoever has the completion token of the run has said how the work ended. Its RunSucceeded or RunFailed
    follows."""

    message_id: str


@dataclass(slots=True)
class WorkSkipped(RunEvent):
    """No edge to the work was taken. It gets a run of its own, so that it is seen."""

    then: Consequences


@dataclass(slots=True)
class WorkBlocked(WorkEvent):
    """The work needs the success of something that failed."""

    then: Consequences


@dataclass(slots=True)
class WorkHeldBack(RunEvent):
    """The circuit of the work's target is open. The work waits, which costs no attempt and no place of a runner. The
    event may come again for work that waits already, with a later `until_time`. `run` is the run that a runner handed
    back for this reason, or 0."""

    target: str
    # The circuit is not expected to let the work through before.
    until_time: Instant
    # When the retry budget of the work is over. 0: never.
    give_up_time: Instant


@dataclass(slots=True)
class WorkLetThrough(WorkEvent):
    """The circuit of its target lets the work through: it is ready again."""

    # The circuit is half open, and the work has one of its permits.
    is_probe: bool


@dataclass(slots=True)
class OutputRequested(WorkEvent):
    """All nodes are done well. A runner renders the workflow's output."""


@dataclass(slots=True)
class StopOrdered:
    """The execution is ending, and no new work begins. Runners that are at work are told to stop and awaited until
    `answer_by_time`. Then the execution ends as `outcome`. A RunCancelled follows for each wait."""

    time: Instant
    outcome: ExecutionState
    error: FinalError
    answer_by_time: Instant
    message_id: str
    caller: str
    # Work that is cancelled: it was ready for a runner, awaited its next attempt, or was to begin as a control node.
    cancelled: tuple[WorkKey, ...]
    # Work that was skipped or blocked in the same decision. No WorkSkipped and no WorkBlocked follows for it any more.
    passed_over: tuple[WorkKey, ...]


@dataclass(slots=True)
class CompensationStarted:
    """The execution does not end well. Before it ends, the work that was done and can be undone is undone."""

    time: Instant
    # What it ends as after that.
    outcome: ExecutionState
    error: FinalError
    # The compensations, in the order in which they are done, one after the other.
    works: tuple[WorkKey, ...]
    # The first of them is ready.
    then: Consequences


@dataclass(slots=True)
class ExecutionPaused:
    """No work begins, and no timer of a backoff or a wait fires, until the execution is resumed or told to end. Runs
    that are under way go on."""

    time: Instant
    message_id: str
    caller: str
    reason: str


@dataclass(slots=True)
class ExecutionResumed:
    time: Instant
    message_id: str
    caller: str


class ReopenedWork(NamedTuple):
    """Work that is done again, or for the first time, after a reopening."""

    key: WorkKey
    # The edges into it, as they stand after the reopening: those that have yet to resolve, and those that resolved as
    # TAKEN and as BLOCKED.
    unresolved: int
    taken: int
    blocked: int
    # A JSON object that is laid over its inputs. Empty: none.
    overrides: bytes


@dataclass(slots=True)
class ExecutionReopened:
    """A person has some work done again: the execution goes on, also if it had ended. What is not named here keeps its
    outcome."""

    time: Instant
    message_id: str
    caller: str
    # The lease under which it goes on. If the execution had ended, this is a new one.
    epoch: int
    holder: str
    work: tuple[ReopenedWork, ...]
    # The first failure that remains and that nobody handles.
    first_failure: FinalError | None
    # 0: none. A new span if the execution had ended.
    deadline_time: Instant
    # What becomes of the work whose edges have all resolved, or that is reached by no edge.
    then: Consequences


@dataclass(slots=True)
class DeadLetterResolved:
    """A person has decided about work that failed for good. An execution that has ended stays as it is."""

    time: Instant
    message_id: str
    caller: str
    # As in ExecutionReopened.
    epoch: int
    holder: str
    # The run that failed for good.
    run: int
    resolution: DeadLetterResolution
    notes: str
    # What follows from the failure now, if the work was held for a person and is discarded.
    then: Consequences


@dataclass(slots=True)
class RunQuarantined(RunEvent):
    """A person has set the work of this run apart. Its failure follows."""

    message_id: str
    caller: str
    notes: str


@dataclass(slots=True)
class CommandRefused:
    """A command of a person did not fit the state, and nothing was changed."""

    time: Instant
    message_id: str
    caller: str
    # A RefusalReason.
    reason: str
    message: str


@dataclass(slots=True)
class ExecutionFinished:
    """Nothing is going any more. The execution is final."""

    time: Instant
    state: ExecutionState
    # Set for a successful execution only.
    output: Value | None
    error: FinalError | None
    duration: Span


_OfStart: TypeAlias = ExecutionStarted | ExecutionAdopted
_OfEnd: TypeAlias = OutputRequested | StopOrdered | CompensationStarted | ExecutionFinished
_OfPause: TypeAlias = ExecutionPaused | ExecutionResumed
_OfPeople: TypeAlias = _OfPause | ExecutionReopened | DeadLetterResolved | RunQuarantined | CommandRefused
_OfRun: TypeAlias = RunLeased | RunStarted | RunProgressed | LateReportRejected
_OfRunEnd: TypeAlias = RunSucceeded | RunFailed | RunLost | RunReleased | RunCancelled
_OfWork: TypeAlias = ControlRendered | WorkRendered | BackoffEnded | WaitStarted | WaitEnded | WorkSkipped | WorkBlocked
LoopEvent: TypeAlias = ItemsRequested | ItemsRead | LoopStarted | LoopContinued | LoopGathered | LoopClosed
OfChild: TypeAlias = ChildRequested | ChildStarted | ChildRefused | ChildCancelOrdered | ChildCancelTold
_OfMessages: TypeAlias = (
    SignalReceived | SignalTaken | ApprovalRequested | ApprovalDecided | RunDeferred | OutsideAnswered
)
_OfCircuit: TypeAlias = WorkHeldBack | WorkLetThrough
_OfOthers: TypeAlias = _OfPeople | LoopEvent | OfChild | _OfMessages | _OfCircuit
Event: TypeAlias = _OfStart | _OfEnd | _OfRun | _OfRunEnd | _OfWork | _OfOthers
