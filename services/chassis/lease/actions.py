"""What the two state machines ask of their drivers, as data. Lists belong to the receiver."""

from dataclasses import dataclass
from typing import TypeAlias

from services.chassis.lease.frames import Attach, Grant, Refused, Report


@dataclass(slots=True, frozen=True)
class OpenInstance:
    """Server: find out whether this instance may attach; answer with `accept` or `refuse`."""

    attach: Attach


@dataclass(slots=True, frozen=True)
class RenewInstance:
    """Server: renew the instance's row; answer with `renewed` or `ended` after the commit."""

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
    """Server: never sent, and never will be; the work may be granted again under a higher epoch."""

    grants: list[Grant]


@dataclass(slots=True, frozen=True)
class GrantsInDoubt:
    """Server: sent on a stream that is gone, perhaps unread, perhaps at work: the instance's next attach
    tells which it holds. Until then, or until the instance ends, the work is the holder's.
    """

    grants: list[Grant]


@dataclass(slots=True, frozen=True)
class ReportsArrived:
    """Server: commit them, then acknowledge or refuse each."""

    reports: list[Report]


@dataclass(slots=True, frozen=True)
class NotesArrived:
    """Either side: the hop's own items."""

    notes: list[object]


@dataclass(slots=True, frozen=True)
class CreditStated:
    """Server: the holder has just said how much it takes."""


@dataclass(slots=True, frozen=True)
class HolderDrains:
    """Server: it takes no more grants."""


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
    """Holder: new leases, already in the table. Start them when `may_start`."""

    grants: list[Grant]


@dataclass(slots=True, frozen=True)
class LeasesRevoked:
    """Holder: stop this work; the leases are gone from the table."""

    revoked: list[Refused]


@dataclass(slots=True, frozen=True)
class ReportsTaken:
    reports: list[Report]


@dataclass(slots=True, frozen=True)
class ReportsRefused:
    """Holder: recorded by the server as refused, with the reason beside each."""

    refused: list[tuple[Report, str]]


@dataclass(slots=True, frozen=True)
class Fenced:
    """Holder: not heard for the self-fence time; start nothing new."""


@dataclass(slots=True, frozen=True)
class Resumed:
    """Holder: heard again, under the same instance."""


@dataclass(slots=True, frozen=True)
class InstanceEnded:
    """Holder: end all work; go on with `renew_instance(fresh id)`, which every stream needs a new dial
    for.
    """

    reason: str


@dataclass(slots=True, frozen=True)
class Redial:
    """Holder: give up this stream and dial again."""

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
