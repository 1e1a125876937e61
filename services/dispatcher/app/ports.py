"""The Protocols that the loops need of the database and of sessions, and the values that they pass to each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from services.chassis.lease.frames import Grant, RefusedReport
from services.dispatcher.core.batch import AdmissionBatch, BatchResult
from services.dispatcher.core.items import (
    Admission,
    Delivery,
    GivenUp,
    LateReason,
    LeaseBegun,
    LeaseFinished,
    LeaseParked,
    LeaseReleased,
    LeaseReport,
    MailboxMessage,
    Measure,
    NewStart,
    Requeued,
    WorkspaceLimits,
)
from services.dispatcher.core.late_reasons import LeasedRow
from services.dispatcher.core.releases import Fate

AnyReport = TypeVar("AnyReport", bound=LeaseReport | LeaseBegun)


class Unstorable(Exception):
    """The database refuses the values of an item or of a claim. The whole batch was rolled back."""


class AdmissionStore(Protocol):
    async def commit(self, batch: AdmissionBatch) -> BatchResult: ...

    async def store_limits(self, limits: Mapping[str, WorkspaceLimits]) -> None: ...


class Leases(Protocol):
    async def reasons(self, reports: Sequence[LeaseReport]) -> Sequence[LateReason | None]:
        """Why each report had no effect. None: it had its effect when it was delivered before."""
        ...

    async def find(self, execution_ids: Collection[str]) -> Mapping[str, LeasedRow]: ...

    async def hand_back(self, leases: Sequence[tuple[str, int]], begun: Collection[str] = ()) -> Sequence[Requeued]: ...

    async def keep_open(self, leases: Sequence[tuple[str, int]]) -> Sequence[Requeued]: ...

    async def note_begun(self, leases: Sequence[tuple[str, int]]) -> None: ...

    async def end(self, instances: Sequence[str]) -> Sequence[Requeued]: ...

    async def fail(self, report: LeaseReleased) -> tuple[str, Fate] | None: ...


class Housekeeping(Protocol):
    async def workspaces_with_work(self) -> tuple[list[str], bool]: ...

    async def wake(self) -> tuple[Sequence[Requeued], float | None]: ...

    async def mark_dispatched(self, leases: Sequence[tuple[str, int]]) -> None: ...

    async def lost_grants(self) -> Mapping[str, Sequence[tuple[str, int]]]:
        """Committed grants that were never acknowledged, by holder."""
        ...

    async def holders_gone(self) -> Sequence[str]: ...

    async def untold(self, after: str) -> Sequence[GivenUp]:
        """Some of the dead letters whose parents have yet to learn of them, in the order of their ids, behind this
        one."""
        ...

    async def note_told(self, execution_ids: Sequence[str]) -> None:
        """Their parents know, or they have none."""
        ...

    async def measure(self) -> Sequence[Measure]: ...

    async def notify(self, channel: str, payloads: Sequence[str]) -> None: ...


class Mailbox(Protocol):
    async def deliver(self, messages: Sequence[MailboxMessage]) -> Sequence[Delivery | None]: ...

    async def forget(self, message_ids: Sequence[str]) -> None: ...


class MailboxUpkeep(Protocol):
    async def unread(self) -> Mapping[str, Sequence[bytes]]:
        """Messages that should be in the journal by now, by holder."""
        ...


class CoordinatorSession(Protocol):
    """A session of a coordinator at this replica."""

    @property
    def instance_id(self) -> str: ...

    @property
    def credit(self) -> int: ...

    def take_credit(self, wanted: int) -> int: ...

    def give_back(self, count: int) -> None: ...

    def grant(self, grants: Sequence[Grant]) -> bool:
        """False: the stream is gone, and these grants were not sent."""
        ...

    def acknowledge(self, report_ids: Sequence[str]) -> None: ...

    def refuse_reports(self, refused: Sequence[RefusedReport]) -> None: ...


class Coordinators(Protocol):
    def with_credit(self) -> Sequence[CoordinatorSession]:
        """The sessions with credit, most credit first."""
        ...

    def set_demand(self, demand: int) -> None:
        """How many more executions could be granted if there were credit."""
        ...


class Asker(Protocol):
    """The enqueue stream that brought a new start and waits for its answer."""

    def answered(self, new_start: NewStart, admission: Admission) -> None: ...


class Arrival(NamedTuple):
    new_start: NewStart
    asker: Asker


class PendingReport(NamedTuple, Generic[AnyReport]):
    """A report that waits for its commit."""

    report_id: str
    report: AnyReport
    holder: CoordinatorSession


# A report that goes with a batch.
BatchReport = PendingReport[LeaseFinished | LeaseParked]
