"""The next state of an execution that its holder hands back.

released without failure   PENDING and urgent at once; no attempt is counted
failed, attempts left      PARKED for a short backoff: the api that has the definition may be away
failed for the third time  FAILED: a dead letter, with the last reason
failed for good            FAILED at once
"""

from typing import NamedTuple

from services.dispatcher.core.items import LeaseReleased, State

DISPATCH_ATTEMPTS_MAX = 3
# The first backoff, and its factor for each further failure. Multiplied by the lease scale.
BACKOFF_SECONDS = 0.5
BACKOFF_FACTOR = 4.0


class Fate(NamedTuple):
    state: State
    attempts: int
    # Seconds from now; 0 = no wake-up.
    wake_seconds: float = 0.0
    failure_reason: str = ""
    failure_message: str = ""


def fate_of(report: LeaseReleased, attempts_before: int) -> Fate:
    if not report.is_failure:
        return Fate(State.PENDING, attempts_before)
    attempts = attempts_before + 1
    if report.is_permanent or attempts >= DISPATCH_ATTEMPTS_MAX:
        return Fate(State.FAILED, attempts, 0.0, report.reason or "DISPATCH_FAILED", report.message)
    return Fate(State.PARKED, attempts, BACKOFF_SECONDS * BACKOFF_FACTOR ** (attempts - 1))
