"""Bookkeeping of approvals: they are requested and decided. Waits that end without a decision end them in waits.py."""

from typing import assert_never

from services.coordinator.core import events as ev
from services.coordinator.core.approvals import Approval
from services.coordinator.core.fold.answers import remember
from services.coordinator.core.state import Execution


def apply_approval(execution: Execution, event: ev.ApprovalRequested | ev.ApprovalDecided) -> None:
    match event:
        case ev.ApprovalRequested():
            _requested(execution, event)
        case ev.ApprovalDecided():
            _decided(execution, event)
        case _:
            assert_never(event)


def _requested(execution: Execution, event: ev.ApprovalRequested) -> None:
    execution.approvals[event.run] = Approval(
        event.key.node,
        event.title,
        event.form,
        event.assignees,
        event.required,
        event.time,
        execution.waits[event.key].due,
    )


def _decided(execution: Execution, event: ev.ApprovalDecided) -> None:
    remember(execution, event.message_id)
    approval = execution.approvals[event.run]
    approval.decisions.append(event)
    if event.outcome is not None:
        approval.state = event.outcome
