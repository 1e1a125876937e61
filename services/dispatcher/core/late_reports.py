"""Why a report that matched no lease changed nothing, judged by the row as it is now.

| the row                 | LeaseFinished | LeaseParked, LeaseReleased |
|-------------------------|---------------|----------------------------|
| is gone                 | it had effect | LEASE_UNKNOWN              |
| has the report's epoch  | EPOCH_STALE   | it had effect              |
| has another epoch       | EPOCH_STALE   | EPOCH_STALE                |

A finished execution leaves no row, so a repeated `LeaseFinished` finds none; a parked or released one keeps its epoch
until it is granted again.
"""

from typing import NamedTuple

from services.dispatcher.core.items import LateReason, LeaseFinished, LeaseReport, State


class LeasedRow(NamedTuple):
    """A row as it is now."""

    epoch: int
    state: State
    holder: str | None

    @property
    def is_leased(self) -> bool:
        return self.state in (State.CLAIMED, State.DISPATCHED)


def late_reason(report: LeaseReport, row: LeasedRow | None) -> LateReason | None:
    """None: the report had its effect when it was delivered before."""
    if isinstance(report, LeaseFinished):
        return None if row is None else LateReason.EPOCH_STALE
    if row is None:
        return LateReason.LEASE_UNKNOWN
    return None if row.epoch == report.epoch else LateReason.EPOCH_STALE


def lease_refusal(epoch: int, instance_id: str, row: LeasedRow | None) -> LateReason | None:
    """Why a lease that a holder names at its attach is not its own. None: it is."""
    if row is None:
        return LateReason.LEASE_UNKNOWN
    if row.epoch != epoch or not row.is_leased or row.holder != instance_id:
        return LateReason.EPOCH_STALE
    return None
