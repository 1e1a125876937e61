"""One batch of the queue: the items and claims that one transaction commits, and its result.

Admissions have the order of the new starts that they answer. A batch that cannot be stored is split, first into its
items and its claims, until the item or the workspace at fault stands alone. The rest of the batch is not held back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Self

from services.dispatcher.core.items import Admission, Claim, LeaseFinished, LeaseParked, NewStart, WorkspaceView


@dataclass(slots=True, frozen=True)
class AdmissionBatch:
    # The time by the clock of this process. Times in the rows are the database's.
    now: datetime
    new_starts: Sequence[NewStart] = ()
    # For each new start, the index of the holder that has room for it, or -1.
    new_start_holders: Sequence[int] = ()
    # Queued executions of a workspace, where the number is known well enough. The batch counts the others.
    waiting: Mapping[str, int] = field(default_factory=dict)
    finished: Sequence[LeaseFinished] = ()
    parked: Sequence[LeaseParked] = ()
    # Workspaces to claim from, in the order in which they are served.
    workspaces: Sequence[str] = ()
    # The holder of each row that the batch may claim: of those workspaces, and of executions that will only be ended.
    claim_holders: Sequence[int] = ()
    ending_holders: Sequence[int] = ()
    # Instance ids. The holder indexes above point into this list.
    holders: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.items or self.is_claiming)

    @property
    def items(self) -> int:
        return len(self.new_starts) + len(self.finished) + len(self.parked)

    @property
    def is_claiming(self) -> bool:
        return bool(self.workspaces or self.ending_holders)

    def without_claims(self) -> Self:
        return replace(self, workspaces=(), claim_holders=(), ending_holders=())

    def claim_of(self, workspace: str, claim_holders: Sequence[int]) -> AdmissionBatch:
        """A batch that has only the claim from this workspace."""
        return AdmissionBatch(self.now, workspaces=[workspace], claim_holders=claim_holders, holders=self.holders)

    def claim_of_ending(self) -> AdmissionBatch:
        """A batch that has only the claim of executions that will be ended."""
        return AdmissionBatch(self.now, ending_holders=self.ending_holders, holders=self.holders)

    def halves(self) -> tuple[Self, Self]:
        """Split a batch without claims into two smaller ones; the first has the earlier items."""
        if self.finished or self.parked:
            if self.new_starts:
                return replace(self, new_starts=(), new_start_holders=()), replace(self, finished=(), parked=())
            finished, parked = len(self.finished) // 2, -(-len(self.parked) // 2)
            return (
                replace(self, finished=self.finished[:finished], parked=self.parked[:parked]),
                replace(self, finished=self.finished[finished:], parked=self.parked[parked:]),
            )
        half = len(self.new_starts) // 2
        return (
            replace(self, new_starts=self.new_starts[:half], new_start_holders=self.new_start_holders[:half]),
            replace(self, new_starts=self.new_starts[half:], new_start_holders=self.new_start_holders[half:]),
        )


@dataclass(slots=True)
class BatchResult:
    admissions: list[Admission] = field(default_factory=list)
    # The reports that took effect, with the workspace of each.
    took_effect: dict[LeaseFinished | LeaseParked, str] = field(default_factory=dict)
    # The database refused to store these, so their effect is unknown.
    refused_reports: list[LeaseFinished | LeaseParked] = field(default_factory=list)
    # Workspaces in which an execution was parked and woken again at once.
    woken: list[str] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    workspaces: list[WorkspaceView] = field(default_factory=list)
    # Workspaces whose claim the database refused, and whether it refused the claim of those that will only be ended.
    refused_workspaces: list[str] = field(default_factory=list)
    is_ending_refused: bool = False

    def join(self, other: Self) -> None:
        """Append the result of the second half."""
        self.admissions += other.admissions
        self.took_effect |= other.took_effect
        self.refused_reports += other.refused_reports
        self.woken += other.woken
        self.claims += other.claims
        self.workspaces += other.workspaces
        self.refused_workspaces += other.refused_workspaces
        self.is_ending_refused = self.is_ending_refused or other.is_ending_refused
