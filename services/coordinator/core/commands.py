"""The commands to an execution, in the imperative.

A command brings along everything that the core may not find out itself: random numbers, who is alive, trace contexts. A
report names a run by its number, the epoch of its lease and the instance of the runner. All three must fit, or the
report is late or not that runner's to give. An empty instance means that the coordinator itself speaks.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from services.coordinator.core.retry import DEFAULT_RETRY, RetryPolicy
from services.coordinator.core.state import Work
from services.coordinator.core.values import Error, Instant, Origin, ReleaseReason, Span, Value


@dataclass(slots=True)
class Cancel:
    """Asked twice, the execution is cancelled once."""

    message_id: str = ""
    reason: str = ""
    caller: str = ""


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


@dataclass(slots=True)
class Adopt:
    """Go on with an execution whose journal was folded. Runs of instances that are not in `live` are lost."""

    epoch: int
    holder: str
    live: Container[str]


@dataclass(slots=True)
class Grant:
    work: Work
    instance_id: str
    runner: str
    traceparent: str = ""
    # The runner says that its module may be run twice.
    is_idempotent: bool = False


@dataclass(slots=True)
class Assign:
    """Lease work from `Execution.ready` to runners that have room."""

    grants: Sequence[Grant]


@dataclass(slots=True)
class ReportStarted:
    run: int
    epoch: int
    start_time: Instant
    instance_id: str = ""


@dataclass(slots=True)
class ReportProgress:
    run: int
    epoch: int
    progress: float = 0.0
    message: str = ""
    cursor: bytes = b""
    instance_id: str = ""


@dataclass(slots=True)
class ReportSuccess:
    run: int
    epoch: int
    output: Value
    branch: str = ""
    start_time: Instant = 0
    end_time: Instant = 0
    inputs_hash: bytes = b""
    config_hash: bytes = b""
    cost_tokens: int = 0
    instance_id: str = ""


@dataclass(slots=True)
class ReportFailure:
    run: int
    epoch: int
    error: Error
    # In [0, 1), for the jitter of the backoff.
    random: float
    retry_after: Span = 0
    start_time: Instant = 0
    end_time: Instant = 0
    inputs_hash: bytes = b""
    config_hash: bytes = b""
    cost_tokens: int = 0
    instance_id: str = ""


@dataclass(slots=True)
class ReportStopped:
    """The runner stopped the work because it was told to."""

    run: int
    epoch: int
    start_time: Instant = 0
    end_time: Instant = 0
    instance_id: str = ""


@dataclass(slots=True)
class Release:
    """Take a run back without an outcome: from its runner, or because it never reached one."""

    run: int
    epoch: int
    reason: ReleaseReason
    may_have_begun: bool = False
    instance_id: str = ""


@dataclass(slots=True)
class LoseRunner:
    """A runner instance is gone. Its idempotent work may be granted again at once, the rest after the full term."""

    instance_id: str
    is_idempotent_only: bool = False


@dataclass(slots=True)
class Tick:
    """The time of `Execution.next_wake()` has come. Harmless at any other time."""

    # In [0, 1), for the jitter of a run that is timed out.
    random: float


Command: TypeAlias = (
    ReportSuccess
    | Assign
    | Start
    | ReportFailure
    | Tick
    | ReportStarted
    | ReportProgress
    | ReportStopped
    | Release
    | LoseRunner
    | Cancel
    | Adopt
)
