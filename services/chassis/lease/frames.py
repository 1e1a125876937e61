"""The frames that the two sides of a session exchange, and the limits that both rely on.

An *item* (grant, report, note) carries an object of the hop, which passes through unread. A *frame* holds all
that one side has to send when its stream is free to write. The receiver reads its parts in the order of the
fields. A sequence in a frame is never changed after sending."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from services.chassis.lease.timing import LeaseTiming

# Items in one frame. With more than a few hundred, an item gets no cheaper and the beat behind them waits.
FRAME_ITEMS_MAX = 500
# Unanswered reports of a holder on one session: 4,000 at 10 ms per commit are 400,000 per second.
REPORTS_IN_FLIGHT_MAX = 4_000
# A server refuses more unanswered reports than this. It is twice the holder's limit, as both count at different times.
REPORTS_FLOOD = 2 * REPORTS_IN_FLIGHT_MAX
# The memory that a report costs a server until it is answered, beside its own bytes.
REPORT_COST_BYTES = 1_000
# Items that may wait for a peer that does not read, before its stream is cut. Credit bounds the grants.
OUTGOING_MAX = 20_000
CREDIT_MAX = 100_000
# Leases in one attach or beat. A holder that needs more must run more processes.
HELD_MAX = 20_000
# Items of every kind in one frame. They are counted before any is decoded. This is half again as many as leases,
# because our own writers put fewer items of all other kinds into one frame.
HEARD_ITEMS_MAX = 30_000
# The reason for refusing a report that the server cannot read. The lease goes on, and another report has to end it.
REPORT_INVALID = "REPORT_INVALID"
# Characters of an id or a name, then the number of labels and modules of a holder.
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
    # The hop's message, with all that the work needs.
    work: object


class Report(NamedTuple):
    """A message that the server must commit. The holder keeps and repeats it until it is answered."""

    # Unique in the holder's process.
    report_id: str
    lease_id: str
    epoch: int
    body: object
    # Size of the body on the wire. A holder leaves it at 0.
    size_bytes: int = 0


class Refused(NamedTuple):
    """A lease that one side refuses, denies or takes back. The reason is UPPER_SNAKE."""

    lease_id: str
    epoch: int
    reason: str
    message: str = ""


class RefusedReport(NamedTuple):
    report_id: str
    reason: str


@dataclass(slots=True, frozen=True)
class Attach:
    """The first message of a holder."""

    # A name for people, like "coordinator-0". It is no identity.
    holder: str
    # The identity that leases name. It is fresh at every start and after every refused renewal.
    instance_id: str = ""
    # The holder works on so many leases at once. It may ask for more by its credit.
    capacity: int = 0
    version: str = ""
    held: Sequence[Lease] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    modules: Sequence[str] = ()
    # The modules whose work may be done twice. They are in `modules` too.
    idempotent_modules: Sequence[str] = ()
    # The holder is granted work whose templates are rendered.
    wants_rendered: bool = False


@dataclass(slots=True, frozen=True)
class Attached:
    session_id: str
    server: str
    # None: the times that the server stated are no times to keep to.
    timing: LeaseTiming | None
    # The leases in Attach.held that no longer belong to the holder.
    refused: Sequence[Refused] = ()


@dataclass(slots=True, frozen=True)
class Beat:
    """The sign of life that renews all leases of the instance."""

    # 1, 2, 3… on this session. One beat is in flight at a time.
    number: int
    # True: `held` has all leases. False: `held` and `gone` tell what has changed since the last answered beat.
    is_full: bool
    held_count: int
    held: Sequence[Lease] = ()
    gone: Sequence[str] = ()
    loop_lag: float = 0.0


@dataclass(slots=True, frozen=True)
class BeatAnswer:
    """It is sent after the renewal is committed."""

    number: int
    is_renewed: bool
    wants_full: bool = False


@dataclass(slots=True, frozen=True)
class Credit:
    """How many more grants may come. It replaces the statement before. Grants that cross it on the way count."""

    number: int
    amount: int


@dataclass(slots=True, frozen=True)
class StreamFault:
    """A breach of the protocol, or the reason why the server cannot serve. It is the last item on a stream."""

    reason: str
    message: str = ""


@dataclass(slots=True)
class HolderFrame:
    """A frame from a holder to its server."""

    attach: Attach | None = None
    # The number of grants that have arrived on this session. All of them are taken, except the refused ones.
    grants_seen: int = 0
    refused: Sequence[Refused] = ()
    reports: Sequence[Report] = ()
    notes: Sequence[object] = ()
    credit: Credit | None = None
    beat: Beat | None = None
    is_draining: bool = False


@dataclass(slots=True)
class ServerFrame:
    """A frame from a server to a holder."""

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
