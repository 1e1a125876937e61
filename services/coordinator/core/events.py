"""What happened to an execution, in the past tense: the vocabulary of the journal.

Together with `definition.py` these are everything the state is made of. Each says what was decided, not what to do
about it, so that folding needs no rule. Stored for ever: a field is added with a default, never given another meaning
(`protos/windlass/journal/v1/journal.proto` is the stored form, `store/codec.py` the translation).

`time` is when it was decided, by the clock of whoever decided. The sequence number and the epoch are not in here: an
event is the next one by its place, and the epoch is that of the holder who appends.

Hazards: mutable for the speed of their making, but nobody changes one after `decide` returned it.
"""

from dataclasses import dataclass
from typing import TypeAlias

from services.coordinator.core.retry import RetryPolicy
from services.coordinator.core.values import (
    Error,
    ExecutionState,
    Failure,
    FailureReason,
    Instant,
    ReleaseReason,
    Span,
    Value,
)


@dataclass(slots=True)
class ExecutionStarted:
    """The first event of every journal: all that was asked for, so that a take-over needs no other table."""

    time: Instant
    epoch: int
    holder: str
    workspace: str
    workflow: str
    version: int
    version_id: str
    input: bytes
    labels: tuple[tuple[str, str], ...]
    priority: int
    trigger_type: int
    caller: str
    request_id: str
    parent_execution_id: str
    create_time: Instant
    # When it left the queue: the difference to `create_time` is the time queued.
    grant_time: Instant
    # 0: none.
    deadline: Instant
    traceparent: str
    # In force where neither node nor workflow says otherwise, for the whole life of the execution.
    retry: RetryPolicy


@dataclass(slots=True)
class ExecutionAdopted:
    """Another holder, or the same one anew, goes on from here under a new epoch."""

    time: Instant
    epoch: int
    holder: str


@dataclass(slots=True)
class RunLeased:
    """A runner was given the work. The sequence number of this event is the epoch of the run's lease. No instance: no
    runner can be given it, and its failure follows in the same append."""

    time: Instant
    number: int
    node: str
    iteration: int
    generation: int
    attempt: int
    instance_id: str
    runner: str
    traceparent: str
    # The work may be done twice: the node says so, or the runner did of its module. Kept, since whoever has to know it
    # has that runner no longer. False in records older than it, where the node alone says so.
    is_idempotent: bool = False


@dataclass(slots=True)
class RunStarted:
    """The runner said that the work began; recorded only for runs that outlast a beat."""

    time: Instant
    number: int
    start_time: Instant


@dataclass(slots=True)
class RunProgressed:
    time: Instant
    number: int
    progress: float
    message: str
    # Handed to the next attempt, should there be one.
    cursor: bytes


@dataclass(slots=True)
class RunSucceeded:
    time: Instant
    number: int
    output: Value
    branch: str
    start_time: Instant
    end_time: Instant
    inputs_hash: bytes
    config_hash: bytes
    cost_tokens: int


@dataclass(slots=True)
class ControlRendered:
    """A runner rendered the config of a control node; the core goes on with it under the same run."""

    time: Instant
    number: int
    config: bytes
    start_time: Instant
    end_time: Instant


@dataclass(slots=True)
class RunFailed:
    """`reason` None: tried again at `retry_time`. Otherwise the node failed, for that reason."""

    time: Instant
    number: int
    error: Error
    fingerprint: str
    start_time: Instant
    end_time: Instant
    inputs_hash: bytes
    config_hash: bytes
    cost_tokens: int
    retry_time: Instant
    reason: FailureReason | None
    # False: judged by the coordinator (its backstop behind the node's timeout), and the runner is told to stop.
    is_reported: bool


@dataclass(slots=True)
class RunLost:
    """The runner died with it: one more death on this work. `reason` None: ready again at once."""

    time: Instant
    number: int
    reason: FailureReason | None


@dataclass(slots=True)
class RunReleased:
    """Handed back; ready again at once, and nothing is charged."""

    time: Instant
    number: int
    release: ReleaseReason
    may_have_begun: bool
    # False: the coordinator took it back itself.
    is_reported: bool


@dataclass(slots=True)
class RunCancelled:
    """Ended without an outcome because the execution ends. `is_reported` False: nobody ran it, or answered in time."""

    time: Instant
    number: int
    start_time: Instant
    end_time: Instant
    is_reported: bool


@dataclass(slots=True)
class LateReportRejected:
    """Somebody reported on a run that is no longer theirs. Once per run, so that a zombie cannot fill a journal."""

    time: Instant
    number: int
    epoch: int
    report: str


@dataclass(slots=True)
class BackoffEnded:
    """The wait before the next attempt is over: the work is ready."""

    time: Instant
    node: str
    iteration: int
    generation: int


@dataclass(slots=True)
class JoinPassed:
    time: Instant
    number: int
    node: str
    iteration: int
    generation: int


@dataclass(slots=True)
class SleepStarted:
    """`number` is new, or that of the run that rendered the config."""

    time: Instant
    number: int
    node: str
    iteration: int
    generation: int
    wake_time: Instant


@dataclass(slots=True)
class SleepEnded:
    time: Instant
    number: int


@dataclass(slots=True)
class NodesSkipped:
    """No edge to them was taken. The first gets the run number `first_number`, the others the following."""

    time: Instant
    first_number: int
    nodes: list[str]


@dataclass(slots=True)
class NodesBlocked:
    """They need the success of something that failed."""

    time: Instant
    nodes: list[str]


@dataclass(slots=True)
class OutputRequested:
    """All nodes are settled well; a runner renders the workflow's output."""

    time: Instant


@dataclass(slots=True)
class StopOrdered:
    """No new work; what runs is told to stop and awaited until `answer_by`. Then it ends as `outcome`."""

    time: Instant
    outcome: ExecutionState
    error: Failure
    answer_by: Instant
    message_id: str
    caller: str


@dataclass(slots=True)
class ExecutionFinished:
    """The last event of every journal."""

    time: Instant
    state: ExecutionState
    # Of a successful one.
    output: Value | None
    error: Failure | None
    duration: Span


Event: TypeAlias = (
    RunSucceeded
    | RunLeased
    | ExecutionStarted
    | ExecutionFinished
    | ExecutionAdopted
    | RunStarted
    | RunProgressed
    | ControlRendered
    | RunFailed
    | RunLost
    | RunReleased
    | RunCancelled
    | LateReportRejected
    | BackoffEnded
    | JoinPassed
    | SleepStarted
    | SleepEnded
    | NodesSkipped
    | NodesBlocked
    | OutputRequested
    | StopOrdered
)
