"""One turn of the queue: all that has gathered, to be committed together, and what the commit made of it.

Results are in the order of what they answer. A turn that cannot be stored is split, first into its items and its
claims, until the item or the lane at fault stands alone; what else was in it is not held back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Self

from services.dispatcher.core.items import Admission, Finished, LaneView, Newcomer, Parked, Place


@dataclass(slots=True, frozen=True)
class Turn:
    # By the clock of this process; what the rows say of time is the database's.
    now: datetime
    newcomers: Sequence[Newcomer] = ()
    # For each newcomer the index of the holder that has room for it, or -1.
    newcomer_seats: Sequence[int] = ()
    # How many wait, where that is known well enough; in the other workspaces of newcomers the turn counts.
    waiting: Mapping[str, int] = field(default_factory=dict)
    finished: Sequence[Finished] = ()
    parked: Sequence[Parked] = ()
    # Workspaces to claim from, in the order of their turn.
    lanes: Sequence[str] = ()
    # The holder of each place that a claim may fill.
    lane_seats: Sequence[int] = ()
    ending_seats: Sequence[int] = ()
    # Instances by index.
    holders: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.newcomers or self.finished or self.parked or self.lanes or self.ending_seats)

    @property
    def items(self) -> int:
        return len(self.newcomers) + len(self.finished) + len(self.parked)

    @property
    def has_claims(self) -> bool:
        return bool(self.lanes or self.ending_seats)

    def without_claims(self) -> Self:
        return replace(self, lanes=(), lane_seats=(), ending_seats=())

    def claim_of(self, lane: str, lane_seats: Sequence[int]) -> Self:
        """Of this lane alone."""
        return replace(self.claim_of_ending(), ending_seats=(), lanes=[lane], lane_seats=lane_seats)

    def claim_of_ending(self) -> Self:
        """Of what will only be ended, alone."""
        return replace(
            self,
            newcomers=(),
            newcomer_seats=(),
            waiting={},
            finished=(),
            parked=(),
            lanes=(),
            lane_seats=(),
        )

    def halves(self) -> tuple[Self, Self]:
        """Two turns with all that this one has, which has no claims; the first has the earlier items."""
        if self.finished or self.parked:
            if self.newcomers:
                return (
                    replace(self, newcomers=(), newcomer_seats=()),
                    replace(self, finished=(), parked=()),
                )
            finished, parked = len(self.finished) // 2, -(-len(self.parked) // 2)
            return (
                replace(self, finished=self.finished[:finished], parked=self.parked[:parked]),
                replace(self, finished=self.finished[finished:], parked=self.parked[parked:]),
            )
        half = len(self.newcomers) // 2
        return (
            replace(self, newcomers=self.newcomers[:half], newcomer_seats=self.newcomer_seats[:half]),
            replace(self, newcomers=self.newcomers[half:], newcomer_seats=self.newcomer_seats[half:]),
        )


@dataclass(slots=True)
class TurnResult:
    admissions: list[Admission] = field(default_factory=list)
    # The workspace of each report that took effect, None for one that did not.
    finished: list[str | None] = field(default_factory=list)
    parked: list[str | None] = field(default_factory=list)
    # Those that the database refuses: nobody knows what would have become of them.
    refused_reports: list[Finished | Parked] = field(default_factory=list)
    # Of those just parked, the workspaces in which one was woken at once.
    woken: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    lanes: list[LaneView] = field(default_factory=list)
    # Lanes whose claim the database refuses, and whether it does so with what will only be ended.
    refused_lanes: list[str] = field(default_factory=list)
    is_ending_refused: bool = False

    def join(self, other: Self) -> None:
        """Append the result of the second half."""
        self.admissions += other.admissions
        self.finished += other.finished
        self.parked += other.parked
        self.refused_reports += other.refused_reports
        self.woken += other.woken
        self.places += other.places
        self.lanes += other.lanes
        self.refused_lanes += other.refused_lanes
        self.is_ending_refused = self.is_ending_refused or other.is_ending_refused
