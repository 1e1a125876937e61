"""All that a server has yet to send to a holder, apart from grants. Levels are overwritten, items are queued."""

from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

from services.chassis.lease.frames import Attached, BeatAnswer, Grant, Lease, Refused, RefusedReport, ServerFrame


@dataclass(slots=True)
class Outgoing:
    """`len()` counts the queued items. The caller that adds items enforces the bound."""

    attached: Attached | None = None
    beat: BeatAnswer | None = None
    beat_heard: int = 0
    demand_newest: int = 0
    demand_said: int | None = None
    owes_demand: bool = False
    owes_drain: bool = False
    is_last_taken: bool = False
    taken: deque[str] = field(default_factory=deque)
    refused_reports: deque[RefusedReport] = field(default_factory=deque)
    revoked: deque[Refused] = field(default_factory=deque)
    claims: deque[Lease] = field(default_factory=deque)
    notes: deque[object] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self.taken) + len(self.refused_reports) + len(self.revoked) + len(self.claims) + len(self.notes)

    def forget_items(self) -> None:
        for queue in (self.taken, self.refused_reports, self.revoked, self.claims, self.notes):
            queue.clear()

    def take(self, grants: list[Grant], room: int, *, has_unsent_grants: bool) -> ServerFrame:
        """A new frame with the grants, the levels, and as many items as there is room for."""
        frame = ServerFrame(
            attached=self.attached, beat=self.beat, beat_heard=self.beat_heard, is_draining=self.owes_drain
        )
        self.attached = self.beat = None
        self.beat_heard = 0
        self.owes_drain = False
        if self.owes_demand or (frame.beat is not None and self.demand_newest != self.demand_said):
            frame.demand = self.demand_said = self.demand_newest
            self.owes_demand = False
        if grants:
            frame.grants = grants
        if self.taken:
            frame.taken = _take(self.taken, room)
            room -= len(frame.taken)
        if self.refused_reports:
            frame.refused_reports = _take(self.refused_reports, room)
            room -= len(frame.refused_reports)
        if has_unsent_grants:
            # The other items may name a granted lease, and must not overtake its grant.
            return frame
        if self.revoked:
            frame.revoked = _take(self.revoked, room)
            room -= len(frame.revoked)
        if self.claims:
            frame.claims = _take(self.claims, room)
            room -= len(frame.claims)
        if self.notes:
            frame.notes = _take(self.notes, room)
        return frame


_T = TypeVar("_T")


def _take(queue: deque[_T], count: int) -> list[_T]:
    if len(queue) <= count:
        taken = list(queue)
        queue.clear()
        return taken
    return [queue.popleft() for _ in range(max(0, count))]
