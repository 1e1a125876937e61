"""A holder's memory of one of its streams: what it said, what it was told, what it owes."""

from collections import deque
from enum import Enum, auto

from services.chassis.lease.frames import OUTGOING_MAX, Beat, Credit, Lease, Refused, Report


class StreamState(Enum):
    # Dialled; the attach is owed.
    DIALLED = auto()
    # The attach is sent; nothing more may be said.
    ATTACHING = auto()
    LIVE = auto()
    # The server has asked for no more work and will close the stream.
    LEAVING = auto()


class HolderStream:
    """State only; the rules are in holder.py."""

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
        # The instance under which it attaches; an answer to an older one says nothing about the present one.
        self.instance_id = instance_id
        self.state = StreamState.DIALLED
        self.dialled_at = now
        self.heard_at = now
        self.demand = 0
        # Credit: what is to be left from now on, what is left of the newest statement that was sent, and
        # what may still come in the worst case under all that were.
        self.left = 0
        self.sent_left = 0
        self.bound = 0
        self.credit_number = 0
        # Number of the lowering statement that waits for its confirmation; 0: none.
        self.confirms = 0
        self.owes_credit = False
        # Grants received, and of them counted to the server; a count goes with what else is said, or when it is owed.
        self.received = 0
        self.said_received = 0
        self.owes_count = False
        self.refused: list[Refused] = []
        # Reports by id with whether they end their lease: sent, and yet to send.
        self.in_flight: dict[str, tuple[Report, bool]] = {}
        self.to_send: deque[tuple[Report, bool]] = deque()
        # Not acknowledged by anybody, so the oldest may go when the server does not read.
        self.notes: deque[object] = deque(maxlen=OUTGOING_MAX)
        self.beat_number = 0
        self.beat_in_flight = False
        self.beat_sent_at = now
        self.owes_beat = False
        self.owes_drain = False
        # The leases the server knows of; None: nothing for certain.
        self.told: dict[str, int] | None = None

    @property
    def is_live(self) -> bool:
        return self.state is StreamState.LIVE or self.state is StreamState.LEAVING

    @property
    def promised(self) -> int:
        """Places that belong to this server, until it is certain that it cannot use them."""
        return max(self.left, self.bound)

    @property
    def uncounted(self) -> int:
        return self.received - self.said_received

    def arrived(self) -> None:
        """One grant has come, by whatever statement."""
        self.received += 1
        self.left -= 1
        self.sent_left -= 1
        self.bound -= 1

    def restate(self, amount: int) -> None:
        self.left = amount
        self.owes_credit = self.left != self.sent_left

    def take_credit(self) -> Credit | None:
        """The statement to send. A lowering one frees nothing until the server confirms it."""
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
        """The next beat: the whole set first, then only what changed since the last."""
        self.beat_number += 1
        self.beat_in_flight = True
        self.owes_beat = False
        self.beat_sent_at = now
        told, self.told = self.told, held
        if told is None:
            return Beat(
                self.beat_number, True, len(held), [Lease(*item) for item in held.items()], (), loop_lag
            )
        fresh = [Lease(*item) for item in held.items() - told.items()]
        gone = list(told.keys() - held.keys())
        return Beat(self.beat_number, False, len(held), fresh, gone, loop_lag)
