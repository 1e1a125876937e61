"""The values that go into a batch and come out of it. `start` and `body` are serialized messages, not read here.

A *new start* asks for admission, a *report* tells of an execution that a holder has, and a *claim* is an execution that
a batch has granted to a holder.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import NamedTuple, TypeAlias


class State(IntEnum):
    """The state of a row, stored by number."""

    PENDING = 1
    CLAIMED = 2
    DISPATCHED = 3
    PARKED = 4
    FAILED = 5


class EnqueueOutcome(IntEnum):
    """The outcome of an enqueue, with the numbers of EnqueueAnswer.Outcome."""

    QUEUED = 1
    EXISTING = 2
    REQUEST_ID_REUSED = 3
    QUEUE_FULL = 4
    WORKSPACE_CLOSED = 5
    REJECTED = 6


class WorkspaceLimits(NamedTuple):
    executions_max: int
    queued_max: int
    # Every change raises it.
    revision: int


class NewStart(NamedTuple):
    execution_id: str
    workspace: str
    priority: int
    deadline_time: datetime | None
    # "" = none was given; the execution id alone makes the start unique.
    request_id: str
    request_hash: bytes
    start: bytes
    limits: WorkspaceLimits
    # The parsed form of `start`: a holder that is granted it at once needs no parsing.
    order: object = None


class Admission(NamedTuple):
    """The answer to a new start."""

    outcome: EnqueueOutcome
    existing_execution_id: str = ""
    message: str = ""


class LeaseFinished(NamedTuple):
    execution_id: str
    epoch: int


class LeaseParked(NamedTuple):
    execution_id: str
    epoch: int
    # The time by the clock of this process, like AdmissionBatch.now. Only their difference reaches the database.
    wake_time: datetime | None
    seen_message_ids: tuple[str, ...] = ()


class LeaseReleased(NamedTuple):
    execution_id: str
    epoch: int
    is_failed: bool = False
    is_permanent: bool = False
    reason: str = ""
    message: str = ""
    # Its journal has begun.
    has_begun: bool = False

    @property
    def is_failure(self) -> bool:
        return self.is_failed or self.is_permanent


class LeaseBegun(NamedTuple):
    """The execution has a journal, and stays with its holder."""

    execution_id: str
    epoch: int


LeaseReport: TypeAlias = LeaseFinished | LeaseParked | LeaseReleased


class LateReason(StrEnum):
    """Why a report changed nothing and must not be repeated."""

    EPOCH_STALE = "EPOCH_STALE"
    LEASE_UNKNOWN = "LEASE_UNKNOWN"


class Claim(NamedTuple):
    """An execution that a committed batch has granted to a holder."""

    execution_id: str
    workspace: str
    epoch: int
    # Index into AdmissionBatch.holders.
    holder_index: int
    # The StartOrder as it arrived, or its stored bytes.
    start: object
    # Microseconds since 1970.
    enqueue_us: int
    granted_us: int
    # It was granted before, so its journal has to be read first.
    is_resumed: bool = False
    # An earlier holder has said that its journal has begun.
    has_begun: bool = False
    is_ends_only: bool = False
    # Serialized ExecutionMessages, oldest first.
    messages: Sequence[bytes] = ()
    # The time at which it was woken. 0: it was not parked.
    wake_us: int = 0


class Requeued(NamedTuple):
    """A row that is PENDING again, or has to be looked at again."""

    execution_id: str
    workspace: str
    is_ends_only: bool


class RowToMake(NamedTuple):
    """The row of an execution that a message may reopen. It is made if there is none."""

    priority: int
    start: bytes


class MailboxMessage(NamedTuple):
    """A message for an execution."""

    message_id: str
    execution_id: str
    # "" = the execution's own, whichever that is.
    workspace: str
    body: bytes
    # It asks to end the execution. A queued execution then needs no slot any more.
    is_ending: bool
    # Set if it may reopen the execution. Its workspace is set then.
    row: RowToMake | None = None
    # It has to be read after those that were stored before it: a person has sent it, perhaps after another one.
    is_in_order: bool = False
    # It is kept for an execution that is a dead letter, which finds it when a person requeues it. Nobody would send it
    # again then.
    waits_for_requeue: bool = False


class Delivery(NamedTuple):
    """The execution as a message found it."""

    workspace: str
    # The instance to which the message has to be sent.
    holder: str | None
    # The message has woken it: it is PENDING now.
    was_woken: bool
    is_ends_only: bool
    # Its mailbox was full, so the message was not stored. Its sender may send it again.
    is_refused: bool = False
    # The bodies of the unread messages that have to be sent before it. None: they are too many to be sent at once.
    unread_before: Sequence[bytes] | None = ()


class WorkspaceView(NamedTuple):
    """A workspace as a batch saw it, under the workspace's lock."""

    workspace: str
    executions_max: int
    # Free slots before this batch.
    free: int
    taken: int
    # Executions are queued that this batch did not take.
    has_more: bool
    # The change that this batch made to the number of queued executions.
    added: int = 0
    # The number of queued executions after this batch, when it counted them.
    queued: int | None = None


class Measure(NamedTuple):
    """A workspace's queue at one moment."""

    workspace: str
    waiting: int
    going: int
    # Age of the oldest queued execution, and of the oldest lease.
    age_seconds: float
    lease_age_seconds: float


class QueuePlace(NamedTuple):
    """The place of an execution in the queue of its workspace."""

    state: State
    enqueue_time: datetime
    wake_time: datetime | None
    # Executions of the workspace that go before it, if it is PENDING.
    ahead: int
    slots_taken: int
    slots_max: int
    # Some executions that hold the slots, longest first.
    holders: Sequence[str]


class QueuedRow(NamedTuple):
    """A row as the api shows it."""

    state: State
    # Serialized StartOrder.
    start: bytes
    attempts: int
    failure_reason: str
    failure_message: str
    failure_time: datetime | None
    # What a person has decided about a FAILED row: "", DISCARDED, or REQUEUED if this is how it had failed before.
    resolution: str = ""
    reviewer: str = ""
    notes: str = ""
    resolve_time: datetime | None = None
    # A holder has said that its journal has begun.
    has_begun: bool = False
    # Serialized ExecutionMessages that a PENDING execution has yet to read, oldest first.
    unread: Sequence[bytes] = ()


class FailedPlace(NamedTuple):
    """The place of a FAILED row in the order of lists."""

    failure_time: datetime
    execution_id: str


class RequeueOrder(NamedTuple):
    """A person has a FAILED row queued again."""

    # Serialized StartOrder, and the same without its input, for lists.
    start: bytes
    shown_start: bytes
    deadline_time: datetime | None
    # The time of the failure that the person has seen. None: any failure will do.
    failure_time: datetime | None
    reviewer: str
    notes: str
    # "": a repeat is not known.
    request_id: str
    request_hash: bytes


class Requeueing(NamedTuple):
    """The row as it had failed, with the decision."""

    row: QueuedRow
    # False: the same request came before, and this is what it did.
    is_first: bool
    # The request id came before with other content.
    is_reused: bool = False


class GivenUp(NamedTuple):
    """A row that has become a dead letter. If it is a child, its parent has yet to learn so."""

    execution_id: str
    # Serialized StartOrder.
    start: bytes
    failure_reason: str
    failure_message: str
    # Microseconds since 1970.
    failure_us: int


class UsedRequest(NamedTuple):
    """A request_id and the start that it was used for."""

    request_id: str
    request_hash: bytes
    execution_id: str
