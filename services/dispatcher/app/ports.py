"""What the handlers need of the database and of the sessions, and what the rest of the service brings to them."""

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
    LeaseReport,
    NewStart,
    WorkspaceLimits,
)


class Unstorable(Exception):
    """The database refuses an item or a claim of the batch for what it holds; nothing of the batch happened."""


class AdmissionStore(Protocol):
    async def commit(self, batch: AdmissionBatch) -> BatchResult: ...

    async def store_limits(self, limits: Mapping[str, WorkspaceLimits]) -> None: ...


class LateReasons(Protocol):
    async def reasons(self, reports: Sequence[LeaseReport]) -> Sequence[LateReason | None]:
        """Why each had no effect; None: it had, at an earlier delivery."""
        ...


class CoordinatorSession(Protocol):
    """A coordinator, by one of its sessions here."""

    @property
    def instance_id(self) -> str: ...

    @property
    def credit(self) -> int: ...

    def take_credit(self, count: int) -> int: ...

    def give_back(self, count: int) -> None: ...

    def grant(self, claims: Sequence[Claim]) -> bool:
        """False: its stream is gone, and with it these claims."""
        ...

    def acknowledge(self, report_ids: Sequence[str]) -> None: ...

    def refuse(self, report_id: str, reason: str) -> None: ...


class Asker(Protocol):
    """Who brought a new start and waits for its answer."""

    def answered(self, new_start: NewStart, admission: Admission) -> None: ...


class Arrival(NamedTuple):
    new_start: NewStart
    asker: Asker


class PendingReport(NamedTuple):
    """A report that waits for its commit."""

    report_id: str
    report: LeaseFinished | LeaseParked
    holder: CoordinatorSession
