"""Events about an execution as a whole, and the commands of people."""

from dataclasses import dataclass
from typing import NamedTuple

from services.coordinator.core.events.shapes import Consequences, RunEvent, WorkEvent
from services.coordinator.core.retry import RetryPolicy
from services.coordinator.core.values import (
    DeadLetterResolution,
    ExecutionState,
    FinalError,
    Instant,
    Origin,
    Span,
    Value,
    WorkKey,
)


@dataclass(slots=True)
class ExecutionStarted:
    """The first event of every journal: all that was asked for, so that a take-over needs no other table."""

    time: Instant
    epoch: int
    holder: str
    origin: Origin
    # The time at which the execution left the queue. It was queued since `origin.create_time`.
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
    # If it was parked: when it was woken, and when it left the queue after that. 0: it was not.
    wake_time: Instant = 0
    grant_time: Instant = 0


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
    # The execution ends as this after that.
    outcome: ExecutionState
    error: FinalError
    # The compensations, in the order in which they are done, one after the other.
    works: tuple[WorkKey, ...]
    # The first of them is ready.
    then: Consequences


@dataclass(slots=True)
class ExecutionFinished:
    """Nothing is going any more. The execution is final."""

    time: Instant
    state: ExecutionState
    # Set for a successful execution only.
    output: Value | None
    error: FinalError | None
    duration: Span


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
    # The node whose edge lets it begin, if it sees the state of one path alone and an edge that stays was taken.
    begun_by: str = ""


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
    # This says what becomes of work whose edges have all resolved, or that is reached by no edge.
    then: Consequences


@dataclass(slots=True)
class DeadLetterResolved:
    """A person has decided about work that failed for good. An execution that has ended stays as it is."""

    time: Instant
    message_id: str
    caller: str
    # These two are set as in ExecutionReopened.
    epoch: int
    holder: str
    # The run that failed for good.
    run: int
    resolution: DeadLetterResolution
    notes: str
    # This follows from the failure now, if the work was held for a person and is discarded.
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
class CommandChangedNothing:
    """A command of a person fitted the state, and there was nothing to change. A repeat gets the same answer, although
    there may be something to change by then."""

    time: Instant
    message_id: str
    caller: str
