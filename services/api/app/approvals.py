"""Decisions about approvals: the form is checked here, everything else by the execution, which decides once.

The form of an approval is fixed when it is requested, so a form that was checked here stays good on its way.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

import orjson

from services.api.app import refusals
from services.api.app.checking.children import Checkers
from services.api.app.commands import Commands, NewCommand
from services.api.app.ports import ApprovalReads, ApprovalView
from services.api.app.startables import VIOLATIONS_MAX
from services.chassis.grpc.errors import DependencyUnavailable, Refusal, Violation
from services.chassis.identity.callers import Identity
from windlass.definition.limits import FORM_BYTES_MAX

_ENDS: Final = {"APPROVE": "APPROVED", "REJECT": "REJECTED"}


class GivenDecision(NamedTuple):
    approval_id: str
    # APPROVE or REJECT.
    choice: str
    # As JSON; empty: none was given.
    form: bytes
    comment: str
    request_id: str
    # The ExecutionCommand.
    message: Any


class Approvals:
    def __init__(self, reads: ApprovalReads, commands: Commands, checker: Checkers) -> None:
        self._reads = reads
        self._commands = commands
        self._checker = checker

    async def find(self, workspace: str, approval_id: str) -> ApprovalView:
        approval = await self._reads.approval(approval_id)
        if approval is None or approval.workspace != workspace:
            raise refusals.approval_not_found(approval_id)
        return approval

    async def decide(self, identity: Identity, given: GivenDecision) -> ApprovalView:
        """The approval after the decision."""
        approval = await self.find(identity.workspace, given.approval_id)
        command = _command(identity, given)
        if approval.state != "PENDING" and not await self._commands.has_answer(command):
            return _resolved(approval, given)
        await self._check_form(approval, given)
        try:
            await self._commands.give(identity.workspace, command)
        except Refusal as refusal:
            if refusal.reason not in ("EXECUTION_FINAL", "ALREADY_RESOLVED"):
                raise
            return _resolved(await self.find(identity.workspace, given.approval_id), given)
        approval = await self.find(identity.workspace, given.approval_id)
        if approval.state == "PENDING" and (identity.title, given.choice) not in approval.decisions:
            raise DependencyUnavailable("the execution", "the decision is on its way; repeat it to learn its outcome")
        return approval

    async def _check_form(self, approval: ApprovalView, given: GivenDecision) -> None:
        if len(given.form) > FORM_BYTES_MAX:
            raise refusals.invalid_field("form", "TOO_LARGE", f"{len(given.form)} bytes; at most {FORM_BYTES_MAX}")
        if approval.form == b"{}" or (given.choice == "REJECT" and not given.form):
            return
        # A form that holds templates was not checked when the definition was applied.
        if fault := await self._checker.fault(approval.workspace, approval.form):
            violations = [Violation("form", "BAD_SCHEMA", f"the approval has no usable schema: {fault}")]
            raise refusals.form_mismatch(approval.id, violations)
        found = await self._checker.violations(approval.workspace, approval.form, given.form or b"{}", VIOLATIONS_MAX)
        if found:
            named = [each._replace(field=each.field.replace("input", "form", 1)) for each in found]
            raise refusals.form_mismatch(approval.id, named)


def _resolved(approval: ApprovalView, given: GivenDecision) -> ApprovalView:
    """The approval, if it has ended in this way."""
    if approval.state != _ENDS[given.choice]:
        raise refusals.approval_resolved(approval.id, approval.state)
    return approval


def _command(identity: Identity, given: GivenDecision) -> NewCommand:
    """Without a request id, the same decision of the same key is the same command."""
    execution_id, _, number = given.approval_id.partition(".")
    content = orjson.dumps([given.choice, given.form.decode(), given.comment])
    request_id = given.request_id or hashlib.sha256(content).hexdigest()

    kind = f"decide.{number}.{identity.name}"
    return NewCommand(kind, execution_id, given.message, request_id)
