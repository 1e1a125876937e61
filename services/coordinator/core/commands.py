"""The commands to an execution, in the imperative.

A command brings along everything that the core may not find out itself: random numbers, who is alive, trace contexts. A
report names a run by its number, the epoch of its lease and the instance of the runner. All three must fit, or the
report is late or not that runner's to give.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from services.coordinator.core.items import LoopConfig
from services.coordinator.core.retry import DEFAULT_RETRY, RetryPolicy
from services.coordinator.core.state import Work
from services.coordinator.core.values import (
    ApprovalChoice,
    Error,
    ExecutionState,
    FinalError,
    Instant,
    Origin,
    OutputRef,
    ReleaseReason,
    Span,
    Value,
    WorkKey,
)


@dataclass(slots=True)
class Cancel:
    """It belongs to the state that it was given in. So a copy that comes late changes nothing, also when the execution
    was reopened since: whoever wants the reopened execution cancelled gives another cancel."""

    message_id: str = ""
    reason: str = ""
    caller: str = ""
    # As in PersonCommand.
    seen_seq: int | None = None


@dataclass(slots=True)
class PersonCommand:
    """A command that a person gave. It is carried out once for each message id: a repeat gives no events and gets the
    first answer (`answers.py`)."""

    message_id: str
    # Title of the key that gave it.
    caller: str
    # The newest event when it was given. None: nobody knows.
    seen_seq: int | None = field(default=None, kw_only=True)


@dataclass(slots=True)
class Pause(PersonCommand):
    """Nothing new begins until the execution is resumed. On one that is paused it changes nothing."""

    reason: str = ""


@dataclass(slots=True)
class Resume(PersonCommand):
    """A paused execution goes on."""


@dataclass(slots=True)
class AfterEndCommand(PersonCommand):
    """It may also come to an execution that has ended."""

    # The lease under which the command is carried out then, because an execution that has ended was not adopted.
    epoch: int = field(default=0, kw_only=True)
    holder: str = field(default="", kw_only=True)


@dataclass(slots=True)
class Retry(AfterEndCommand):
    """Do the failed nodes again, or this node, and all that depends on them."""

    # Empty: from all nodes that failed with nobody to handle it, or that were cancelled.
    from_node: str = ""
    # JSON objects by node, laid over the inputs that the node would have.
    overrides: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class Requeue(AfterEndCommand):
    """Do the work of a dead letter again, and all that depends on it."""

    # The run that failed for good.
    run: int
    notes: str = ""
    # A JSON object, laid over the inputs of the node. Empty: none.
    overrides: bytes = b""


@dataclass(slots=True)
class MarkFixed(AfterEndCommand):
    """A person has done the work of a dead letter: its node succeeded with this output, and no run is needed. The core
    gives itself this command when the child of a held node has succeeded after all."""

    run: int
    output: Value
    notes: str = ""


@dataclass(slots=True)
class Discard(AfterEndCommand):
    """Nobody will do the work of a dead letter. If its node is held for a person, it fails now."""

    run: int
    notes: str = ""


@dataclass(slots=True)
class Quarantine(PersonCommand):
    """The work of this run is to fail for good, though it is under way or would be tried again."""

    run: int
    notes: str = ""


class FinishedWork(NamedTuple):
    """Work that an execution has done well, as a fork may take it over."""

    # The module of the node; and that of its body, if it is a loop.
    module: tuple[str, str]
    # The number of the run.
    run: int
    output: Value
    branch: str
    # The node whose outcome let it begin, if it sees the state of one path alone. Empty: it does not.
    begun_by: str


@dataclass(slots=True)
class Start:
    epoch: int
    holder: str
    origin: Origin
    grant_time: Instant = 0
    # 0: the workflow's own timeout holds, counted from the creation.
    deadline: Instant = 0
    retry: RetryPolicy = DEFAULT_RETRY
    # Set when the execution was cancelled while it waited in the queue: it starts and ends in one decision, without
    # any work.
    cancel: Cancel | None = None
    # Set when the execution was paused while it waited in the queue: it starts, and nothing begins.
    pause: Pause | None = None
    # What a fork may take over from its origin, by node.
    finished: Mapping[str, FinishedWork] = field(default_factory=dict)


@dataclass(slots=True)
class Adopt:
    """Go on with an execution whose journal was folded. Runs of instances that are not in `live` are lost."""

    epoch: int
    holder: str
    live: Container[str]
    # If it was parked: when it was woken, and when it left the queue after that.
    wake_time: Instant = 0
    grant_time: Instant = 0


@dataclass(slots=True)
class AssignedRun:
    work: Work
    instance_id: str
    runner: str
    traceparent: str = ""
    # The runner says that its module may be run twice.
    is_idempotent: bool = False
    # It is to render only: the runner that does the work cannot.
    is_rendering: bool = False


@dataclass(slots=True)
class Assign:
    """Lease work from `Execution.ready` to runners that have room."""

    grants: Sequence[AssignedRun]


@dataclass(slots=True)
class ReportOfRun:
    run: int
    epoch: int
    # Empty: the coordinator itself speaks.
    instance_id: str = field(default="", kw_only=True)


@dataclass(slots=True)
class ReportOfEnd(ReportOfRun):
    """A run is over, and this is what its runner measured."""

    start_time: Instant = field(default=0, kw_only=True)
    end_time: Instant = field(default=0, kw_only=True)
    inputs_hash: bytes = field(default=b"", kw_only=True)
    config_hash: bytes = field(default=b"", kw_only=True)
    cost_tokens: int = field(default=0, kw_only=True)
    # What the work called, "" if it names nothing. The core does not look at it: outcomes of targets are counted
    # outside, where all coordinators share them (circuits.py).
    target: str = field(default="", kw_only=True)


@dataclass(slots=True)
class ReportHeldBack(ReportOfRun):
    """A runner did not call the target of the work, because it was told that its circuit is open."""

    # The target as its module names it.
    target: str
    # When the circuit may let the work through.
    until: Instant = 0


@dataclass(slots=True)
class ReportStarted(ReportOfRun):
    start_time: Instant


@dataclass(slots=True)
class ReportProgress(ReportOfRun):
    progress: float = 0.0
    message: str = ""
    cursor: bytes = b""


@dataclass(slots=True)
class ReportSuccess(ReportOfEnd):
    output: Value
    branch: str = ""


@dataclass(slots=True)
class ReportFailure(ReportOfEnd):
    error: Error
    # It is in [0, 1) and gives the backoff its jitter.
    random: float
    retry_after: Span = 0
    # Empty: that of the last progress.
    cursor: bytes = b""
    # The runner has rendered this, which is kept for people. Empty: it has rendered nothing.
    rendered: bytes = b""


@dataclass(slots=True)
class ReportStopped(ReportOfEnd):
    """The runner stopped the work because it was told to."""


@dataclass(slots=True)
class ReportDeferred(ReportOfEnd):
    """The module has given the completion token of the run to somebody else, who finishes the work."""


@dataclass(slots=True)
class Release(ReportOfRun):
    """Take a run back without an outcome: from its runner, or because it never reached one."""

    reason: ReleaseReason
    may_have_begun: bool = False
    # Empty: that of the last progress.
    cursor: bytes = b""


@dataclass(slots=True)
class HeldWork:
    key: WorkKey
    target: str
    until: Instant


@dataclass(slots=True)
class HoldBack:
    """The circuits of these targets are open: their work is not to be given to a runner, and waits until then."""

    works: Sequence[HeldWork]


@dataclass(slots=True)
class LetThrough:
    """The circuit of their target lets the work of these keys through."""

    keys: Sequence[WorkKey]
    # It is half open, and each of them has a permit.
    is_probe: bool = False


@dataclass(slots=True)
class LoseRunner:
    """A runner instance is gone. Its idempotent work may be granted again at once, the rest after the full term."""

    instance_id: str
    is_idempotent_only: bool = False
    # The instance had begun some run, of this execution or another.
    has_begun_runs: bool = False


@dataclass(slots=True)
class StartLoop:
    """The config of a loop was read from the output store."""

    key: WorkKey
    # None: it is no config of a loop, for this reason.
    config: LoopConfig | None
    fault: str = ""


@dataclass(slots=True)
class FinishLoop:
    """The output of a loop that is gathered was put into the output store."""

    key: WorkKey
    # None: it is too large for the store.
    output: OutputRef | None


@dataclass(slots=True)
class NoteChildStarted:
    """The child is queued."""

    child_execution_id: str


@dataclass(slots=True)
class RefuseChild:
    """The child cannot be started, now or later."""

    child_execution_id: str
    reason: str
    message: str


@dataclass(slots=True)
class NoteChildCancelTold:
    """The cancel is in the mailbox of the child, or the child is over."""

    child_execution_id: str


@dataclass(slots=True)
class EndChild:
    """The child is over. It may say so again if it goes on afterwards, so an end that nobody waits for changes
    nothing."""

    child_execution_id: str
    state: ExecutionState
    # Set if it succeeded.
    output: Value | None
    # Set if it did not.
    error: FinalError | None
    # It is in [0, 1) and gives the backoff its jitter.
    random: float


@dataclass(slots=True)
class Tick:
    """The time of `Execution.next_wake()` has come. Harmless at any other time."""

    # It is in [0, 1) and gives the backoff of a run that is timed out its jitter.
    random: float


@dataclass(slots=True)
class Signal(PersonCommand):
    signal: str
    # JSON.
    payload: bytes


@dataclass(slots=True)
class DecideApproval(PersonCommand):
    # The id and the role of the key that decides.
    key_id: str
    role: str
    # The number of the approval's run.
    run: int
    decision: ApprovalChoice
    # JSON that fits the form of the approval.
    form: bytes = b"{}"
    comment: str = ""


@dataclass(slots=True)
class OutsideCommand(PersonCommand):
    """It comes from whoever has the completion token of the run, which was checked before. Nobody else is named, so
    `caller` is empty."""

    run: int


@dataclass(slots=True)
class CompleteRun(OutsideCommand):
    # JSON.
    output: bytes
    branch: str = ""


@dataclass(slots=True)
class FailRun(OutsideCommand):
    error: Error
    # It is in [0, 1) and gives the backoff its jitter.
    random: float


@dataclass(slots=True)
class HeartbeatRun(OutsideCommand):
    # None: it stays as it was.
    progress: float | None = None
    message: str | None = None


_Reports: TypeAlias = ReportSuccess | ReportFailure | ReportStarted | ReportProgress | ReportStopped | ReportDeferred
_OfRunners: TypeAlias = _Reports | Assign | Release | LoseRunner
_OfDeadLetters: TypeAlias = Requeue | MarkFixed | Discard | Quarantine
_OfOutside: TypeAlias = CompleteRun | FailRun | HeartbeatRun
_OfPeople: TypeAlias = Cancel | Pause | Resume | Retry | Signal | DecideApproval | _OfOutside | _OfDeadLetters
_OfChild: TypeAlias = NoteChildStarted | RefuseChild | NoteChildCancelTold | EndChild
_OfLoops: TypeAlias = StartLoop | FinishLoop
_OfCircuits: TypeAlias = ReportHeldBack | HoldBack | LetThrough
Command: TypeAlias = _OfRunners | Start | Tick | Adopt | _OfPeople | _OfChild | _OfLoops | _OfCircuits
