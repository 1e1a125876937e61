"""The Protocols that the loops need of the database and of sessions, and the values that they pass to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from services.dispatcher.core.batch import AdmissionBatch, BatchResult
from services.dispatcher.core.items import (
    Admission,
    Astray,
    Claim,
    Delivery,
    LateReason,
    LeaseFinished,
    LeaseParked,
    LeaseReleased,
    LeaseReport,
    MailboxMessage,
    Measure,
    NewStart,
    Returned,
    Unread,
    Woken,
    WorkspaceLimits,
)
from services.dispatcher.core.releases import Fate


class Unstorable(Exception):
    """The database refuses the values of an item or of a claim. The whole batch was rolled back."""


class AdmissionStore(Protocol):
    async def commit(self, batch: AdmissionBatch) -> BatchResult: ...

    async def store_limits(self, limits: Mapping[str, WorkspaceLimits]) -> None: ...


class LateReasons(Protocol):
    async def reasons(self, reports: Sequence[LeaseReport]) -> Sequence[LateReason | None]:
        """Why each report had no effect. None: it had its effect when it was delivered before."""
        ...


class Leases(LateReasons, Protocol):
    async def hand_back(self, leases: Sequence[tuple[str, int]]) -> Sequence[Returned]: ...

    async def end(self, instances: Sequence[str]) -> Sequence[Returned]: ...

    async def fail(self, report: LeaseReleased) -> tuple[str, Fate] | None: ...


class LeaseHolders(Protocol):
    async def holders_gone(self) -> list[str]: ...


class Housekeeping(Protocol):
    async def workspaces_with_work(self) -> tuple[list[str], bool]: ...

    async def wake(self) -> tuple[Sequence[Woken], float | None]: ...

    async def mark_dispatched(self, leases: Sequence[tuple[str, int]]) -> None: ...

    async def astray(self) -> Sequence[Astray]: ...

    async def measure(self) -> Sequence[Measure]: ...

    async def forget_requests(self, kept_seconds: float) -> int: ...


class Mailbox(Protocol):
    async def deliver(self, messages: Sequence[MailboxMessage]) -> Sequence[Delivery | None]: ...

    async def forget(self, message_ids: Sequence[str]) -> None: ...


class MailboxUpkeep(Protocol):
    async def unread(self) -> Sequence[Unread]: ...

    async def sweep(self) -> int: ...


class NoticeSender(Protocol):
    async def send(self, channel: str, payloads: Sequence[str]) -> None: ...


class Wakes(Protocol):
    """The admission loop."""

    def work_in(self, workspace: str, *, is_ends_only: bool = False) -> None: ...


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
