"""What the two sides of a session say to each other, and the limits that both rely on.

An *item* (grant, report, note) carries an object of the hop, which passes through unread. A *frame* is all
that one side had to say when its stream was free to write; its parts are read in the order of its fields.
Frames hold tuples or lists that nobody changes after sending."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from services.chassis.lease.timing import LeaseTiming

# Items in one frame: beyond a few hundred a frame costs no less per item, and delays the beat behind it.
FRAME_ITEMS_MAX = 500
# Reports that a holder has unanswered on one session; 4,000 in flight at 10 ms a commit are 400,000 a second.
REPORTS_IN_FLIGHT_MAX = 4_000
# What a server bears before it calls it a flood: twice the holder's own limit, as both count at different
# moments.
REPORTS_FLOOD = 2 * REPORTS_IN_FLIGHT_MAX
# What a report costs a server until its answer, beside its own bytes.
REPORT_COST_BYTES = 1_000
# What may wait for a peer that does not read (beyond grants, which credit bounds) before its stream is cut.
OUTGOING_MAX = 20_000
CREDIT_MAX = 100_000
# Leases in one attach or beat; a holder with more than this must spread over more processes.
HELD_MAX = 20_000
# Items of every kind in one frame, counted before any is looked at. Half again as many as leases: of what else there
# may be (news of each lease, refusals, reports) our own writers put less into one.
HEARD_ITEMS_MAX = 30_000
# Characters of an id or a name; labels and modules of a holder.
NAME_MAX = 255
LABELS_MAX = 64
MODULES_MAX = 1_000


class Lease(NamedTuple):
    """The right to work on something. The epoch rises at every grant of the same thing."""

    lease_id: str
    epoch: int


class Grant(NamedTuple):
    lease_id: str
    epoch: int
    # The hop's message, with all that is needed to work.
    work: object


class Report(NamedTuple):
    """Something durable that the server must commit: kept and repeated until it is answered."""

    # Unique in the holder's process.
    report_id: str
    lease_id: str
    epoch: int
    body: object
    # Of the body on the wire; a holder leaves it at 0.
    size_bytes: int = 0


class Refused(NamedTuple):
    """A lease that one side does not (or no longer) let the other have. The reason is UPPER_SNAKE."""

    lease_id: str
    epoch: int
    reason: str
    message: str = ""


class RefusedReport(NamedTuple):
    report_id: str
    reason: str


@dataclass(slots=True, frozen=True)
class Attach:
    """A holder's first words."""

    # For people; not an identity.
    holder: str
    # The identity that leases name: fresh at every start and after every refused renewal.
    instance_id: str
    capacity: int
    version: str = ""
    held: Sequence[Lease] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    modules: Sequence[str] = ()
    # Of the modules, those whose work may be done twice.
    idempotent_modules: Sequence[str] = ()


@dataclass(slots=True, frozen=True)
class Attached:
    session_id: str
    server: str
    timing: LeaseTiming
    # Of Attach.held, what is the holder's no longer.
    refused: Sequence[Refused] = ()


@dataclass(slots=True, frozen=True)
class Beat:
    """The sign of life that renews all leases of the instance."""

    # 1, 2, 3… on this session; one is in flight at a time.
    number: int
    # Whether `held` is all, or what was taken since the last answered beat.
    is_full: bool
    held_count: int
    held: Sequence[Lease] = ()
    gone: Sequence[str] = ()
    loop_lag: float = 0.0


@dataclass(slots=True, frozen=True)
class BeatAnswer:
    """Given after the renewal is committed."""

    number: int
    is_renewed: bool
    wants_full: bool = False


@dataclass(slots=True, frozen=True)
class Credit:
    """How many more grants may come: replaces what was stated before, less what crosses it on the way."""

    number: int
    amount: int


@dataclass(slots=True, frozen=True)
class StreamFault:
    """A breach of the protocol, or why the server cannot serve. The last thing on a stream."""

    reason: str
    message: str = ""


@dataclass(slots=True)
class HolderFrame:
    """From holder to server; read in the order of the fields."""

    attach: Attach | None = None
    # How many grants this session has brought: all of them are taken except the refused.
    grants_seen: int = 0
    refused: Sequence[Refused] = ()
    reports: Sequence[Report] = ()
    notes: Sequence[object] = ()
    credit: Credit | None = None
    beat: Beat | None = None
    is_draining: bool = False


@dataclass(slots=True)
class ServerFrame:
    """From server to holder; read in the order of the fields."""

    attached: Attached | None = None
    taken: Sequence[str] = ()
    refused_reports: Sequence[RefusedReport] = ()
    grants: Sequence[Grant] = ()
    revoked: Sequence[Refused] = ()
    claims: Sequence[Lease] = ()
    notes: Sequence[object] = ()
    credit_seen: int = 0
    demand: int | None = None
    beat: BeatAnswer | None = None
    beat_heard: int = 0
    is_draining: bool = False
    fault: StreamFault | None = None
