"""The actions that the two state machines ask of their drivers, as data. The receiver owns the lists."""

from dataclasses import dataclass
from typing import TypeAlias

from services.chassis.lease.frames import Attach, Grant, Refused, Report


@dataclass(slots=True, frozen=True)
class OpenInstance:
    """Server: find out whether this instance may attach, then call `accept` or `refuse`."""

    attach: Attach


@dataclass(slots=True, frozen=True)
class RenewInstance:
    """Server: renew the instance's row, and call `renewed` or `ended` after the commit."""

    number: int


@dataclass(slots=True, frozen=True)
class GrantsTaken:
    grants: list[Grant]


@dataclass(slots=True, frozen=True)
class GrantsRefused:
    """Server: the holder will never start these leases under these epochs."""

    refused: list[Refused]


@dataclass(slots=True, frozen=True)
class GrantsWithdrawn:
    """Server: these were never sent and never will be. The work may be granted again under a higher epoch."""

    grants: list[Grant]


@dataclass(slots=True, frozen=True)
class GrantsInDoubt:
    """Server: these were sent on a stream that is gone, so the holder may be working on them.

    The work stays the holder's until its next attach names it or denies it, or until the instance ends.
    """

    grants: list[Grant]


@dataclass(slots=True, frozen=True)
class ReportsArrived:
    """Server: commit them, then acknowledge or refuse each one."""

    reports: list[Report]


@dataclass(slots=True, frozen=True)
class NotesArrived:
    """Either side: items of the hop's own."""

    notes: list[object]


@dataclass(slots=True, frozen=True)
class CreditStated:
    """Server: the holder has just stated its credit."""


@dataclass(slots=True, frozen=True)
class HolderDrains:
    """Server: the holder takes no more grants."""


ServerAction: TypeAlias = (
    OpenInstance
    | RenewInstance
    | GrantsTaken
    | GrantsRefused
    | GrantsWithdrawn
    | GrantsInDoubt
    | ReportsArrived
    | NotesArrived
    | CreditStated
    | HolderDrains
)


@dataclass(slots=True, frozen=True)
class GrantsArrived:
    """Holder: new leases, already in the table. Start the work when `may_start` allows it."""

    grants: list[Grant]


@dataclass(slots=True, frozen=True)
class LeasesRevoked:
    """Holder: stop this work. Its leases are no longer in the table."""

    revoked: list[Refused]


@dataclass(slots=True, frozen=True)
class ReportsTaken:
    reports: list[Report]


@dataclass(slots=True, frozen=True)
class ReportsRefused:
    """Holder: the server has recorded each as refused, for the reason beside it."""

    refused: list[tuple[Report, str]]


@dataclass(slots=True, frozen=True)
class Fenced:
    """Holder: no server has answered for the self-fence time. Start nothing new."""


@dataclass(slots=True, frozen=True)
class Resumed:
    """Holder: a server has answered again, under the same instance."""


@dataclass(slots=True, frozen=True)
class InstanceEnded:
    """Holder: end all work. A fresh instance id is in use, so every stream is dialled again."""

    reason: str


@dataclass(slots=True, frozen=True)
class Redial:
    """Holder: cut this stream and dial again."""

    address: str
    reason: str


HolderAction: TypeAlias = (
    GrantsArrived
    | LeasesRevoked
    | ReportsTaken
    | ReportsRefused
    | NotesArrived
    | Fenced
    | Resumed
    | InstanceEnded
    | Redial
)
