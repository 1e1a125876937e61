"""The state of one stream of a holder: what was sent, what was received, and what is yet to be sent."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from services.chassis.lease.frames import OUTGOING_MAX, Beat, Credit, Lease, Refused, Report


class StreamState(Enum):
    # The attach is yet to be sent.
    DIALLED = auto()
    # The attach is sent. Nothing else may be sent until it is answered.
    ATTACHING = auto()
    LIVE = auto()
    # The server drains: it grants nothing more and will close the stream.
    LEAVING = auto()


@dataclass(slots=True, eq=False)
class HolderStream:
    """One stream of a holder to a server. The rules are in lease/holder.py."""

    address: str
    # The instance under which the stream attaches. An answer to an older one says nothing about the present one.
    instance_id: str
    dialled_at: float
    heard_at: float = 0.0
    beat_sent_at: float = 0.0
    state: StreamState = StreamState.DIALLED
    demand: int = 0
    # Credit: what the plan leaves to the server, what is left of the newest statement that was sent, and how many
    # grants may still come in the worst case under all statements that were sent.
    left: int = 0
    sent_left: int = 0
    bound: int = 0
    credit_number: int = 0
    # Number of the lowering statement that waits for its confirmation. 0: none.
    confirms: int = 0
    owes_credit: bool = False
    # Grants received, and the part of them that the server was told of. A count goes along with the next frame, and
    # makes a frame of its own only when it is owed.
    received: int = 0
    said_received: int = 0
    owes_count: bool = False
    refused: list[Refused] = field(default_factory=list)
    # Reports, sent and yet to be sent. The flag says whether the report ends its lease.
    in_flight: dict[str, tuple[Report, bool]] = field(default_factory=dict)
    to_send: deque[tuple[Report, bool]] = field(default_factory=deque)
    # Notes are never acknowledged, so the oldest may be dropped when the server does not read.
    notes: deque[object] = field(default_factory=lambda: deque(maxlen=OUTGOING_MAX))
    beat_number: int = 0
    beat_in_flight: bool = False
    owes_beat: bool = False
    owes_drain: bool = False
    # The leases that the server knows of. None: that is not certain.
    told: dict[str, int] | None = None

    def __post_init__(self) -> None:
        self.heard_at = self.beat_sent_at = self.dialled_at

    @property
    def is_live(self) -> bool:
        return self.state is StreamState.LIVE or self.state is StreamState.LEAVING

    @property
    def promised(self) -> int:
        """Places that this server may use, until it has confirmed that it will not."""
        return max(self.left, self.bound)

    @property
    def uncounted(self) -> int:
        return self.received - self.said_received

    def arrived(self) -> None:
        """Count one grant that has come, under whichever statement."""
        self.received += 1
        self.left -= 1
        self.sent_left -= 1
        self.bound -= 1

    def restate(self, amount: int) -> None:
        self.left = amount
        self.owes_credit = self.left != self.sent_left

    def take_credit(self) -> Credit | None:
        """The statement to send. A lowering one frees no place until the server confirms it."""
        if not self.owes_credit:
            return None
        self.owes_credit = False
        self.credit_number += 1
        self.left = max(0, self.left)
        if self.left < self.sent_left:
            self.confirms = self.credit_number
        self.bound = max(self.bound, self.left) if self.confirms else self.left
        self.sent_left = self.left
        return Credit(self.credit_number, self.left)

    def confirm(self, number: int) -> None:
        if self.confirms and number >= self.confirms:
            self.confirms = 0
            self.bound = max(0, self.sent_left)

    def take_beat(self, held: dict[str, int], loop_lag: float, now: float) -> Beat:
        """The next beat: all leases in the first, afterwards only what has changed since the last."""
        self.beat_number += 1
        self.beat_in_flight = True
        self.owes_beat = False
        self.beat_sent_at = now
        told, self.told = self.told, held
        if told is None:
            return Beat(self.beat_number, True, len(held), [Lease(*item) for item in held.items()], (), loop_lag)
        fresh = [Lease(*item) for item in held.items() if told.get(item[0]) != item[1]]
        gone = [lease_id for lease_id in told if lease_id not in held]
        return Beat(self.beat_number, False, len(held), fresh, gone, loop_lag)
