"""Events about runs: attempts at work, and the passing of work that no runner did."""

from dataclasses import dataclass

from services.coordinator.core.events.shapes import Consequences, RunEvent, WorkEvent
from services.coordinator.core.values import Error, FailureReason, Instant, OutputRef, ReleaseReason, Value


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
class WorkTakenOver(RunEvent):
    """A fork has taken the outcome of this work over from its origin (`core/forking.py`), so nobody does it here."""

    output: Value
    branch: str
    # The number of the run in the origin.
    origin_run: int
    # The node whose outcome let the work begin in the origin, if it sees the state of one path alone. Empty: it does
    # not.
    begun_by: str
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
    # Set only with a `reason`: what the runner has rendered, as a JSON object with the members "config" and "inputs".
    rendered: bytes = b""


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
    # The work failed, and waits for a person, as in RunFailed.
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
