"""The state of one stream of a holder: what was sent, what was received, and what is yet to be sent."""

from collections import deque
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


class HolderStream:
    """The rules are in holder.py."""

    __slots__ = (
        "address",
        "beat_in_flight",
        "beat_number",
        "beat_sent_at",
        "bound",
        "confirms",
        "credit_number",
        "demand",
        "dialled_at",
        "heard_at",
        "in_flight",
        "instance_id",
        "left",
        "notes",
        "owes_beat",
        "owes_count",
        "owes_credit",
        "owes_drain",
        "received",
        "refused",
        "said_received",
        "sent_left",
        "state",
        "to_send",
        "told",
    )

    def __init__(self, address: str, instance_id: str, now: float) -> None:
        self.address = address
        # The instance under which the stream attaches. An answer to an older one says nothing about the present one.
        self.instance_id = instance_id
        self.state = StreamState.DIALLED
        self.dialled_at = now
        self.heard_at = now
        self.demand = 0
        # Credit: what the plan leaves to the server, what is left of the newest statement that was sent, and
        # how many grants may still come in the worst case under all statements that were sent.
        self.left = 0
        self.sent_left = 0
        self.bound = 0
        self.credit_number = 0
        # Number of the lowering statement that waits for its confirmation. 0: none.
        self.confirms = 0
        self.owes_credit = False
        # Grants received, and the part of them that the server was told of. A count goes along with the next
        # frame, and makes a frame of its own only when it is owed.
        self.received = 0
        self.said_received = 0
        self.owes_count = False
        self.refused: list[Refused] = []
        # Reports, sent and yet to be sent. The flag says whether the report ends its lease.
        self.in_flight: dict[str, tuple[Report, bool]] = {}
        self.to_send: deque[tuple[Report, bool]] = deque()
        # Notes are never acknowledged, so the oldest may be dropped when the server does not read.
        self.notes: deque[object] = deque(maxlen=OUTGOING_MAX)
        self.beat_number = 0
        self.beat_in_flight = False
        self.beat_sent_at = now
        self.owes_beat = False
        self.owes_drain = False
        # The leases that the server knows of. None: that is not certain.
        self.told: dict[str, int] | None = None

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
        fresh = [Lease(*item) for item in held.items() - told.items()]
        gone = list(told.keys() - held.keys())
        return Beat(self.beat_number, False, len(held), fresh, gone, loop_lag)
