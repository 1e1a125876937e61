"""ApprovalService: what people are asked to decide, and their decisions."""

from __future__ import annotations

from typing import Final, Protocol

from services.api.app import refusals
from services.api.app.approvals import Approvals, GivenDecision
from services.api.app.identifiers import is_run_id
from services.api.rpc import translate
from services.api.rpc.filter_text import conditions_of
from services.api.rpc.filters import FieldKind, FilterFields
from services.api.rpc.pages import Page
from services.api.rpc.structs import holding, sorted_json, to_dict
from services.chassis.grpc.beside import beside
from services.chassis.grpc.guard import RpcCall
from services.chassis.identity.callers import caller
from windlass.api.v1 import approvals_pb2 as pb
from windlass.api.v1 import approvals_pb2_grpc
from windlass.api.v1.resources_pb2 import Approval
from windlass.coordinator.v1 import reads_pb2
from windlass.definition.json_values import sift
from windlass.definition.limits import FORM_BYTES_MAX

OF_APPROVALS: Final = FilterFields(
    {
        "state": FieldKind.STATE,
        "workflow": FieldKind.TEXT,
        "execution_id": FieldKind.TEXT,
        "node": FieldKind.TEXT,
        "title": FieldKind.TEXT,
        "assignee": FieldKind.LIST,
        "create_time": FieldKind.TIME,
        "expire_time": FieldKind.TIME,
    },
    frozenset(Approval.State.keys()) - {"STATE_UNSPECIFIED"},
    {},
    has_labels=False,
)


class ApprovalPages(Protocol):
    """Any coordinator."""

    async def approvals(self, request: reads_pb2.ListApprovalsRequest) -> reads_pb2.ListApprovalsResponse: ...


class ApprovalServicer(approvals_pb2_grpc.ApprovalServiceServicer):
    def __init__(self, approvals: Approvals, reads: ApprovalPages) -> None:
        self._approvals = approvals
        self._reads = reads

    async def ListApprovals(self, request: pb.ListApprovalsRequest, context: RpcCall) -> pb.ListApprovalsResponse:
        conditions, workspace = conditions_of(request.filter, OF_APPROVALS), caller().workspace
        page = Page(request, "approvals", workspace, request.filter)
        found = await self._reads.approvals(
            reads_pb2.ListApprovalsRequest(
                workspace=workspace,
                conditions=conditions,
                after_approval_id=page.after if is_run_id(page.after) else "",
                limit=page.size + 1,
                takes_cut=True,
            )
        )
        own = [record for record in found.approvals if record.workspace == workspace]
        shown, token = await beside(
            sum(record.ByteSize() for record in own),
            lambda: page.cut(own, lambda record: record.approval.id, translate.approval_of, is_cut=found.is_cut),
        )
        return holding(pb.ListApprovalsResponse, approvals=shown, next_page_token=token)

    async def GetApproval(self, request: pb.GetApprovalRequest, context: RpcCall) -> pb.GetApprovalResponse:
        approval = await self._approvals.find(caller().workspace, _known(request.approval_id))
        return holding(pb.GetApprovalResponse, approval=await translate.approval(approval.record))

    async def DecideApproval(self, request: pb.DecideApprovalRequest, context: RpcCall) -> pb.DecideApprovalResponse:
        identity, choice = caller(), Approval.Choice.Name(request.decision)
        form = await _form(request) if request.HasField("form") else b""
        message = translate.command()
        decided = message.decide_approval
        decided.run = int(_known(request.approval_id).partition(".")[2])
        decided.key_id, decided.role, decided.approves = identity.name, identity.role, choice == "APPROVE"
        decided.form, decided.comment = form, request.comment

        given = GivenDecision(request.approval_id, choice, form, request.comment, request.request_id, message)
        approval = await self._approvals.decide(identity, given)
        return holding(pb.DecideApprovalResponse, approval=await translate.approval(approval.record))


async def _form(request: pb.DecideApprovalRequest) -> bytes:
    form = await to_dict(request.form, "form", FORM_BYTES_MAX)
    # The node's output has the form three levels deep (decisions, one of them, its form).
    if faults := sift([[[form]]], "form").faults:
        raise refusals.invalid_fields([each._replace(path=each.path.replace("[0]", "", 3)) for each in faults])
    return sorted_json(form)


def _known(approval_id: str) -> str:
    """The id, if it may be that of an approval."""
    if not is_run_id(approval_id):
        raise refusals.approval_not_found(approval_id)
    return approval_id
