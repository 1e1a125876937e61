"""What goes into a batch and what comes out of it. Plain values; `start` and `body` are bytes that nobody here reads.

A *new start* asks for admission; a *report* is what a holder says of an execution it holds; a *claim* is an execution
that a batch has granted to a holder.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import NamedTuple, TypeAlias


class State(IntEnum):
    """Of a row; the numbers are stored."""

    PENDING = 1
    CLAIMED = 2
    DISPATCHED = 3
    PARKED = 4
    FAILED = 5


class EnqueueOutcome(IntEnum):
    """Of an enqueue; the numbers are those of EnqueueAnswer.Outcome."""

    QUEUED = 1
    EXISTING = 2
    REQUEST_ID_REUSED = 3
    QUEUE_FULL = 4
    WORKSPACE_CLOSED = 5
    REJECTED = 6


class WorkspaceLimits(NamedTuple):
    executions_max: int
    queued_max: int
    # Rises with every change.
    revision: int


class NewStart(NamedTuple):
    execution_id: str
    workspace: str
    priority: int
    deadline_time: datetime | None
    # "" = the caller gave none: then the execution id alone makes it unique.
    request_id: str
    request_hash: bytes
    start: bytes
    limits: WorkspaceLimits
    # The same as `start`, for a holder that gets it at once: saves reading it back.
    order: object = None


class Admission(NamedTuple):
    """What became of a new start."""

    outcome: EnqueueOutcome
    existing_execution_id: str = ""
    message: str = ""


class LeaseFinished(NamedTuple):
    execution_id: str
    epoch: int


class LeaseParked(NamedTuple):
    execution_id: str
    epoch: int
    # By the clock of this process, like AdmissionBatch.now: only their difference reaches the database.
    wake_time: datetime | None
    seen_message_ids: tuple[str, ...] = ()


class LeaseReleased(NamedTuple):
    execution_id: str
    epoch: int
    is_failed: bool = False
    is_permanent: bool = False
    reason: str = ""
    message: str = ""


LeaseReport: TypeAlias = LeaseFinished | LeaseParked | LeaseReleased


class LateReason(StrEnum):
    """Why a report changed nothing and must not come again."""

    EPOCH_STALE = "EPOCH_STALE"
    LEASE_UNKNOWN = "LEASE_UNKNOWN"


class Claim(NamedTuple):
    """An execution that now belongs to a holder, committed."""

    execution_id: str
    workspace: str
    epoch: int
    # Index of the holder, among those whose credit was reserved for the batch.
    holder_index: int
    # The order as it arrived, or its bytes as stored.
    start: object
    # Microseconds since 1970.
    enqueue_us: int
    granted_us: int
    # Granted before, so that its journal is to be read first.
    is_resumed: bool = False
    is_ends_only: bool = False
    # ExecutionMessage, oldest first.
    messages: Sequence[bytes] = ()


class Returned(NamedTuple):
    """A row that waits again."""

    execution_id: str
    workspace: str
    is_ends_only: bool


class MailboxMessage(NamedTuple):
    """A message for an execution."""

    message_id: str
    execution_id: str
    # "" = whichever it belongs to.
    workspace: str
    body: bytes
    # It asks for the end: then an execution that waits needs no slot any more.
    is_ending: bool


class Delivery(NamedTuple):
    """What a message met."""

    workspace: str
    state: State
    # Instance that has to be told.
    holder: str | None
    # It waits for a holder because of this message.
    was_woken: bool
    is_ends_only: bool
    # Its mailbox had no room: nothing of it is kept, and its sender may bring it again.
    is_refused: bool = False


class WorkspaceView(NamedTuple):
    """What a batch saw of a workspace, under its lock."""

    workspace: str
    executions_max: int
    # Slots that were free before this batch took any.
    free: int
    taken: int
    # Something waits that this batch did not take.
    has_more: bool
    # By how many this batch has changed what waits.
    added: int = 0
    # How many wait after it, when it counted them.
    queued: int | None = None


class Woken(NamedTuple):
    workspace: str
    is_ends_only: bool


class Astray(NamedTuple):
    """A grant that is committed and was never acknowledged."""

    execution_id: str
    epoch: int
    holder: str


class Unread(NamedTuple):
    """A message that its holder should have journalled by now."""

    body: bytes
    holder: str


class Measure(NamedTuple):
    """A workspace's queue at one moment."""

    workspace: str
    waiting: int
    going: int
    # Of the oldest that waits, and of the oldest lease.
    age_seconds: float
    lease_age_seconds: float


class QueuedRow(NamedTuple):
    """A row as it is shown."""

    state: State
    # StartOrder.
    start: bytes
    attempts: int
    failure_reason: str
    failure_message: str
    failure_time: datetime | None


class UsedRequest(NamedTuple):
    """What a request_id was used for."""

    request_id: str
    request_hash: bytes
    execution_id: str
