"""Approvals: what people are asked, what they have decided, and who may decide.

    PENDING ──the last approval that was required──► APPROVED
       ├──the first rejection──► REJECTED
       ├──the time of the wait is over──► EXPIRED     the node's onTimeout says what follows
       └──the execution ends first──► CANCELLED

An assignee is the title of a key, or a role as "role:ADMIN". Without assignees everybody may decide who may call.

Hazard: whoever makes a key chooses its title. A title that looks like a role is never compared as a title.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.coordinator.core.events import ApprovalDecided
from services.coordinator.core.values import ApprovalChoice, ApprovalState, Instant

ROLE = "role:"


@dataclass(slots=True, eq=False)
class Approval:
    """It mirrors its row. Its id is that of its run."""

    node: str
    title: str
    # A JSON Schema.
    form: bytes
    assignees: tuple[str, ...]
    required: int
    create_time: Instant
    # 0: no time ends it.
    expire_time: Instant
    state: ApprovalState = ApprovalState.PENDING
    decisions: list[ApprovalDecided] = field(default_factory=list)

    def outcome_of(self, decision: ApprovalChoice) -> ApprovalState | None:
        """How one more decision ends it; None if it stays open."""
        if decision is ApprovalChoice.REJECT:
            return ApprovalState.REJECTED
        return ApprovalState.APPROVED if len(self.decisions) + 1 >= self.required else None

    def has_decision_of(self, key_id: str) -> bool:
        return any(each.key_id == key_id for each in self.decisions)


def may_decide(assignees: Sequence[str], title: str, role: str) -> bool:
    if not assignees:
        return True
    return f"{ROLE}{role}" in assignees or (title in assignees and not title.startswith(ROLE))
