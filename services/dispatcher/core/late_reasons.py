"""Says why a report had no effect, from the present row of its execution.

| the row                 | LeaseFinished | LeaseParked, LeaseReleased |
|-------------------------|---------------|----------------------------|
| is gone                 | a repeat      | LEASE_UNKNOWN              |
| has the report's epoch  | EPOCH_STALE   | a repeat                   |
| has another epoch       | EPOCH_STALE   | EPOCH_STALE                |

A repeat: the first copy of the report took effect. A finished execution leaves no row, so a repeated `LeaseFinished`
finds none; a parked or released one keeps its epoch until it is granted again.
"""

from typing import NamedTuple

from services.dispatcher.core.items import LateReason, LeaseFinished, LeaseReport, State


class LeasedRow(NamedTuple):
    """The present row of an execution."""

    epoch: int
    state: State
    holder: str | None

    @property
    def is_leased(self) -> bool:
        return self.state in (State.CLAIMED, State.DISPATCHED)


def late_reason(report: LeaseReport, row: LeasedRow | None) -> LateReason | None:
    """None: the report is a repeat, and its first copy took effect."""
    if isinstance(report, LeaseFinished):
        return None if row is None else LateReason.EPOCH_STALE
    if row is None:
        return LateReason.LEASE_UNKNOWN
    return None if row.epoch == report.epoch else LateReason.EPOCH_STALE


def lease_refusal(epoch: int, instance_id: str, row: LeasedRow | None) -> LateReason | None:
    """Why a lease that a holder names at its attach does not belong to the holder. None: it does."""
    if row is None:
        return LateReason.LEASE_UNKNOWN
    if row.epoch != epoch or not row.is_leased or row.holder != instance_id:
        return LateReason.EPOCH_STALE
    return None
