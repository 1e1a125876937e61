"""The answer of the core to a command: events to append, or a refusal with its reason, or neither.

Neither means that the command took effect before: answer as the first time. Both happen together for a late report,
which is refused and put on record.
"""

from dataclasses import dataclass
from enum import StrEnum

from services.coordinator.core.events import Event


class RefusalReason(StrEnum):
    # A run that this holder no longer has.
    LATE_REPORT = "LATE_REPORT"
    # There is no such run, or the reporter never had it: told alike, so that nobody learns what others run.
    LEASE_UNKNOWN = "LEASE_UNKNOWN"
    EXECUTION_FINAL = "EXECUTION_FINAL"
    EXECUTION_STOPPING = "EXECUTION_STOPPING"
    NOT_READY = "NOT_READY"
    ALREADY_STARTED = "ALREADY_STARTED"
    NOT_STARTED = "NOT_STARTED"
    # Of a holder that was replaced.
    STALE_EPOCH = "STALE_EPOCH"


@dataclass(slots=True, frozen=True)
class Refusal:
    reason: RefusalReason
    message: str


@dataclass(slots=True)
class Decision:
    events: list[Event]
    refusal: Refusal | None = None


def refuse(reason: RefusalReason, message: str) -> Decision:
    return Decision([], Refusal(reason, message))


def nothing_new() -> Decision:
    return Decision([])
