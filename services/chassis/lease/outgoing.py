"""What a server has yet to send to a holder, apart from grants. Levels are overwritten, items are queued."""

from collections import deque
from typing import TypeVar

from services.chassis.lease.frames import Attached, BeatAnswer, Lease, Refused, RefusedReport, ServerFrame


class Outgoing:
    """`len()` counts the queued items. The caller that adds items enforces the bound."""

    __slots__ = (
        "attached",
        "beat",
        "beat_heard",
        "claims",
        "demand_newest",
        "is_last_taken",
        "notes",
        "owes_demand",
        "owes_drain",
        "refused_reports",
        "revoked",
        "taken",
    )

    def __init__(self) -> None:
        self.attached: Attached | None = None
        self.beat: BeatAnswer | None = None
        self.beat_heard = 0
        self.demand_newest = 0
        self.owes_demand = False
        self.owes_drain = False
        self.is_last_taken = False
        self.taken: deque[str] = deque()
        self.refused_reports: deque[RefusedReport] = deque()
        self.revoked: deque[Refused] = deque()
        self.claims: deque[Lease] = deque()
        self.notes: deque[object] = deque()

    def __len__(self) -> int:
        return len(self.taken) + len(self.refused_reports) + len(self.revoked) + len(self.claims) + len(self.notes)

    def forget_items(self) -> None:
        for queue in (self.taken, self.refused_reports, self.revoked, self.claims, self.notes):
            queue.clear()

    def take(self, items_max: int) -> ServerFrame:
        """A new frame with the levels and with answers to reports."""
        frame = ServerFrame(
            attached=self.attached, beat=self.beat, beat_heard=self.beat_heard, is_draining=self.owes_drain, grants=[]
        )
        self.attached = self.beat = None
        self.beat_heard = 0
        self.owes_drain = False
        if self.taken:
            frame.taken = _take(self.taken, items_max)
        if self.refused_reports:
            frame.refused_reports = _take(self.refused_reports, items_max - len(frame.taken))
        return frame

    def take_after_grants(self, frame: ServerFrame, items_max: int) -> None:
        """Add the items that may name a granted lease. They must not overtake its grant."""
        room = items_max - len(frame.taken) - len(frame.refused_reports)
        if self.revoked:
            frame.revoked = _take(self.revoked, room)
            room -= len(frame.revoked)
        if self.claims:
            frame.claims = _take(self.claims, room)
            room -= len(frame.claims)
        if self.notes:
            frame.notes = _take(self.notes, room)


_T = TypeVar("_T")


def _take(queue: deque[_T], count: int) -> list[_T]:
    if len(queue) <= count:
        taken = list(queue)
        queue.clear()
        return taken
    return [queue.popleft() for _ in range(max(0, count))]
