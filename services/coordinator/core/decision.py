"""The answer of the core to a command: events to append, or a refusal with its reason, or neither.

Neither means that the command took effect before: the answer is the same as the first time. A late report gives both:
it is refused, and the refusal is put on record.
"""

from dataclasses import dataclass
from enum import StrEnum

from services.coordinator.core.events import Event


class RefusalReason(StrEnum):
    # The run is over or was taken back.
    LEASE_ENDED = "LEASE_ENDED"
    # The report names another epoch than that of the run's lease; or the execution has a holder with a newer one.
    EPOCH_STALE = "EPOCH_STALE"
    # There is no such run, or the reporter never had it. Both get the same answer, so that nobody learns what others
    # run.
    LEASE_UNKNOWN = "LEASE_UNKNOWN"
    EXECUTION_FINAL = "EXECUTION_FINAL"
    EXECUTION_STOPPING = "EXECUTION_STOPPING"
    EXECUTION_PAUSED = "EXECUTION_PAUSED"
    EXECUTION_NOT_PAUSED = "EXECUTION_NOT_PAUSED"
    # Nothing has failed, so there is nothing to try again.
    EXECUTION_NOT_FAILED = "EXECUTION_NOT_FAILED"
    NODE_NOT_FOUND = "NODE_NOT_FOUND"
    # It has not been reached, or it is still under way.
    NODE_NOT_ENDED = "NODE_NOT_ENDED"
    # Overrides for a node that is not done again.
    NODE_NOT_RETRIED = "NODE_NOT_RETRIED"
    DEAD_LETTER_NOT_FOUND = "DEAD_LETTER_NOT_FOUND"
    # Somebody has decided about the dead letter, or the approval has ended.
    ALREADY_RESOLVED = "ALREADY_RESOLVED"
    RUN_NOT_FOUND = "RUN_NOT_FOUND"
    # The run is over: its work is not tried again, and its completion token is void.
    RUN_ENDED = "RUN_ENDED"
    # A control node waits under this run, so there is no work of a runner to be set apart.
    RUN_IS_WAITING = "RUN_IS_WAITING"
    # A failure edge, or a loop, takes the failure of the run, so it would be no dead letter.
    FAILURE_IS_HANDLED = "FAILURE_IS_HANDLED"
    NOT_READY = "NOT_READY"
    ALREADY_STARTED = "ALREADY_STARTED"
    NOT_STARTED = "NOT_STARTED"
    # Too many signals wait for a node that takes them, or they are too large together.
    SIGNALS_FULL = "SIGNALS_FULL"
    APPROVAL_NOT_FOUND = "APPROVAL_NOT_FOUND"
    NOT_AN_ASSIGNEE = "NOT_AN_ASSIGNEE"
    # This key has decided, and others have to.
    ALREADY_DECIDED = "ALREADY_DECIDED"
    # An earlier command had the same request id and other content.
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"


@dataclass(slots=True, frozen=True)
class CommandRefusal:
    reason: RefusalReason
    message: str


@dataclass(slots=True)
class Decision:
    events: list[Event]
    refusal: CommandRefusal | None = None
