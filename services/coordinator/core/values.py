"""The values that the whole core uses: times, payloads, states, errors.

Hazards: instants and spans are plain integers, so that a thousand of them cost nothing; both count microseconds, an
instant since the Unix epoch. 0 stands for "none" in both, as it does on the wire.
"""

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, TypeAlias

Instant: TypeAlias = int
Span: TypeAlias = int

SECOND: Span = 1_000_000
# A year. Longer waits belong to a schedule.
SPAN_MAX: Span = 365 * 86_400 * SECOND

# A value above this is kept outside and travels as a reference.
INLINE_BYTES_MAX = 256 * 1024

# The type of the error of a run whose node's timeout is over, and the reason for stopping it. An execution that is out
# of time ends with TIMEOUT.
NODE_TIMEOUT = "NODE_TIMEOUT"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The last microsecond of the year 9999.
SHOWN_MAX: Instant = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def rfc3339(instant: Instant) -> str:
    """Integer arithmetic, so nothing is rounded up. A time after the year 9999 is shown as the last one that can be."""
    shown = _EPOCH + timedelta(microseconds=min(instant, SHOWN_MAX))
    return shown.isoformat().replace("+00:00", "Z")


class BrokenInvariant(Exception):
    """The state contradicts itself: a bug, never an answer to anybody."""


@dataclass(slots=True, frozen=True)
class OutputRef:
    """The place where a payload above the inline limit is kept, and its hash and size."""

    key: str
    sha256: str
    size_bytes: int


Value: TypeAlias = bytes | OutputRef


class ExecutionState(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    PAUSED = "PAUSED"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"


FINAL_STATES = frozenset(
    {ExecutionState.SUCCESS, ExecutionState.FAILED, ExecutionState.CANCELLED, ExecutionState.TIMEOUT}
)


class RunState(StrEnum):
    PENDING = "PENDING"
    LEASED = "LEASED"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    DLQ = "DLQ"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"


class ErrorClass(StrEnum):
    """How a failure is treated, not what it was."""

    TRANSIENT = "TRANSIENT"
    PERMANENT = "PERMANENT"
    TIMEOUT = "TIMEOUT"
    # The target was not even asked.
    CIRCUIT_OPEN = "CIRCUIT_OPEN"


class FailureReason(StrEnum):
    """Why a piece of work is not tried again."""

    MAX_RETRIES = "MAX_RETRIES"
    PERMANENT_ERROR = "PERMANENT_ERROR"
    # Its runner died too often: it is set apart before it takes another one down.
    POISON = "POISON"
    # A person has set it apart.
    MANUAL = "MANUAL"
    # The execution was already ending; whether it might have been tried again was never asked.
    STOPPED = "STOPPED"
    # The circuit of its target was open until its retry budget was over.
    CIRCUIT_BREAKER = "CIRCUIT_BREAKER"


class DeadLetterResolution(StrEnum):
    """A person has decided this about a dead letter."""

    PENDING = "PENDING"
    REQUEUED = "REQUEUED"
    FIXED = "FIXED"
    DISCARDED = "DISCARDED"


class ReleaseReason(StrEnum):
    """Why a run came back without an outcome. None of them costs the work an attempt."""

    DRAINED = "DRAINED"
    # The grant never arrived, or its holder does not know of it.
    WITHDRAWN = "WITHDRAWN"
    # The runner cannot do it (unknown module, no room).
    REFUSED = "REFUSED"


class ApprovalChoice(StrEnum):
    """One person decides this about an approval."""

    APPROVE = "APPROVE"
    REJECT = "REJECT"


class ApprovalState(StrEnum):
    PENDING = "PENDING"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    # Nobody decided in time. The node says what follows.
    EXPIRED = "EXPIRED"
    # The execution ended first.
    CANCELLED = "CANCELLED"


@dataclass(slots=True, frozen=True)
class Error:
    """The error of a run. `type` is UPPER_SNAKE or the name of an exception."""

    error_class: ErrorClass
    type: str
    message: str

    @property
    def is_charged(self) -> bool:
        """It counts as an attempt. An open circuit means that the target was not even asked."""
        return self.error_class is not ErrorClass.CIRCUIT_OPEN


@dataclass(slots=True, frozen=True)
class FinalError:
    """The error of an execution. `node` is empty if no node is to blame."""

    node: str
    type: str
    message: str


class WorkKey(NamedTuple):
    """One piece of work. All attempts at it share the key, and the effect key is made from it."""

    # The id of the node in the definition.
    node: str
    # 0 for a plain node; 1, 2, 3… for the items or turns of a loop.
    iteration: int = 0
    # It rises by one each time a person has the node done again.
    generation: int = 1


@dataclass(slots=True, frozen=True)
class Origin:
    """Everything that was asked for when the execution was started. It passes unchanged from the start order through
    the journal into the execution's row. A new field is declared here and, under the same name, in StartOrder
    (`protos/windlass/types/v1/start.proto`). If people may ask for it, it also gets a column (`core/projection.py`,
    `store/tables.py` and the migration)."""

    workspace: str
    workflow: str
    version: int
    # Names the immutable definition.
    version_id: str
    # A JSON object.
    input: bytes = b"{}"
    # They are in the order of their keys.
    labels: tuple[tuple[str, str], ...] = ()
    # 1 to 5.
    priority: int = 3
    trigger_type: int = 0
    caller: str = ""
    request_id: str = ""
    parent_execution_id: str = ""
    create_time: Instant = 0
    # W3C trace context of the start.
    traceparent: str = ""
    # The weight of the workspace when places of runners are shared out. 0: as 1.
    runner_weight: int = 0
    # How many executions are above it: its parent, the parent of that one, and so on.
    depth: int = 0
    # The execution that this one is a fork of. Empty: it is no fork.
    origin_execution_id: str = ""
    # A fork takes over what its origin had done well after the event with this sequence. 0: nothing.
    origin_seq: int = 0
    # A fork does this node anew, and all that depends on it. Empty: no node was named.
    from_node: str = ""


_NUMBERS = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|0x[0-9a-f]+|\d+", re.IGNORECASE)


def fingerprint(module: str, error: Error) -> str:
    """Equal for failures that a person would call the same one: numbers and ids in the message do not count."""
    text = "\0".join((module, error.type, _NUMBERS.sub("#", error.message)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
