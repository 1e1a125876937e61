"""Decisions of people about approvals. Whoever decides first decides, and everybody else is refused.

A second decision of a key that has decided is refused while others have to decide. That a decision which comes too late
may be just the one by which the approval has ended is for api to see.
"""

from services.coordinator.core.answers import answered_once
from services.coordinator.core.approvals import may_decide
from services.coordinator.core.commands import DecideApproval
from services.coordinator.core.controls import end_wait
from services.coordinator.core.decision import CommandRefusal, RefusalReason
from services.coordinator.core.events import ApprovalDecided, WaitOutcome
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import ApprovalState


@answered_once
def decide(turn: Turn, command: DecideApproval) -> CommandRefusal | None:
    approval = turn.execution.approvals.get(command.run)
    if approval is None:
        return CommandRefusal(RefusalReason.APPROVAL_NOT_FOUND, f"run {command.run} asks nobody for an approval")
    if not may_decide(approval.assignees, command.caller, command.role):
        assignees = ", ".join(approval.assignees)
        return CommandRefusal(RefusalReason.NOT_AN_ASSIGNEE, f"this approval is for {assignees}")
    if approval.state is not ApprovalState.PENDING:
        return CommandRefusal(RefusalReason.ALREADY_RESOLVED, f"the approval is {approval.state}")
    if approval.has_decision_of(command.key_id):
        message = f"{command.caller or 'this key'} has decided; {approval.required} different keys have to approve"
        return CommandRefusal(RefusalReason.ALREADY_DECIDED, message)
    work = turn.execution.runs[command.run - 1].work
    outcome = approval.outcome_of(command.decision)
    turn.emit(
        ApprovalDecided(
            turn.now,
            work.key,
            command.run,
            command.message_id,
            command.caller,
            command.key_id,
            command.decision,
            command.form,
            command.comment,
            outcome,
        )
    )
    if outcome is not None:
        end_wait(turn, work, WaitOutcome.ARRIVED)
    return None
