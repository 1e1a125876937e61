"""The work that the two state machines hand to their drivers, as data.

A driver does it in the order of the fields. Most fields go to a callback of the hop, and `SessionOwner` and
`HolderOwner` (chassis/session/owners.py) say what each of these means. The driver owns the lists.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from services.chassis.lease.frames import Attach, Grant, Refused, Report


@dataclass(slots=True)
class ServerEffects:
    """The work that one frame of a holder makes."""

    # Find out whether this instance may attach, then call `accept` or `close`.
    attach: Attach | None = None
    taken: list[Grant] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    # Commit them, then acknowledge or refuse each one.
    reports: list[Report] = field(default_factory=list)
    notes: list[object] = field(default_factory=list)
    has_stated_credit: bool = False
    # The number of a beat, or 0. Renew the instance's row, and call `renewed` or `ended` after the commit.
    beat: int = 0
    has_begun_drain: bool = False


class Redial(NamedTuple):
    """Cut this stream and dial again."""

    address: str
    reason: str


@dataclass(slots=True)
class HolderEffects:
    """The work that one frame of a server makes, or the passing of time."""

    reports_taken: list[Report] = field(default_factory=list)
    # Each report has the reason for which the server has recorded it as refused.
    reports_refused: list[tuple[Report, str]] = field(default_factory=list)
    # Leases that an attach was refused, or that the grants below replace. Stop them before these begin.
    lost: list[Refused] = field(default_factory=list)
    # New leases, already in the table.
    grants: list[Grant] = field(default_factory=list)
    # Leases that are no longer in the table. One of the grants above may be among them.
    revoked: list[Refused] = field(default_factory=list)
    notes: list[object] = field(default_factory=list)
    has_resumed: bool = False
    # Why the instance has ended, or "". A fresh instance id is in use by now.
    end_reason: str = ""
    has_fenced: bool = False
    redials: list[Redial] = field(default_factory=list)
