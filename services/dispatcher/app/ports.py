"""The Protocols that the admission loop needs, and the values that other parts of the service pass to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from services.dispatcher.core.batch import AdmissionBatch, BatchResult
from services.dispatcher.core.items import (
    Admission,
    Claim,
    LateReason,
    LeaseFinished,
    LeaseParked,
    LeaseReleased,
    LeaseReport,
    NewStart,
    WorkspaceLimits,
)


class Unstorable(Exception):
    """The database refuses the values of an item or of a claim. The whole batch was rolled back."""


class AdmissionStore(Protocol):
    async def commit(self, batch: AdmissionBatch) -> BatchResult: ...

    async def store_limits(self, limits: Mapping[str, WorkspaceLimits]) -> None: ...


class LateReasons(Protocol):
    async def reasons(self, reports: Sequence[LeaseReport]) -> Sequence[LateReason | None]:
        """Why each report had no effect. None: it had its effect when it was delivered before."""
        ...


class CoordinatorSession(Protocol):
    """A session of a coordinator at this replica."""

    @property
    def instance_id(self) -> str: ...

    @property
    def credit(self) -> int: ...

    def take_credit(self, count: int) -> int: ...

    def give_back(self, count: int) -> None: ...

    def grant(self, claims: Sequence[Claim]) -> bool:
        """False: the stream is gone, and these claims were not sent."""
        ...

    def acknowledge(self, report_ids: Sequence[str]) -> None: ...

    def refuse(self, report_id: str, reason: str) -> None: ...


class Asker(Protocol):
    """The enqueue stream that brought a new start and waits for its answer."""

    def answered(self, new_start: NewStart, admission: Admission) -> None: ...


class Arrival(NamedTuple):
    new_start: NewStart
    asker: Asker


class PendingReport(NamedTuple):
    """A report that waits for its batch."""

    report_id: str
    report: LeaseFinished | LeaseParked
    holder: CoordinatorSession


class PendingRelease(NamedTuple):
    """A report that is committed outside of the batches (returns.py)."""

    report_id: str
    report: LeaseReleased
    holder: CoordinatorSession
