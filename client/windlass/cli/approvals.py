"""`windlass approvals …`: what people are asked to decide."""

import uuid
from typing import Annotated, Any, Literal

import typer

from windlass.cli import messages, render
from windlass.cli.arguments import LimitOption, PageOption, json_object
from windlass.cli.connection import Api, command

approvals = typer.Typer(help="List, look at and decide approvals.", no_args_is_help=True, rich_markup_mode=None)

ApproveOrReject = Literal["APPROVE", "REJECT"]
ApprovalArgument = Annotated[str, typer.Argument(metavar="APPROVAL_ID")]
COLUMNS: render.Columns = {
    "approval": "id",
    "workflow": "workflow",
    "node": "node",
    "title": "title",
    "state": "state",
    "decisions": lambda approval: f"{len(approval.decisions)} of {approval.required}",
    "asked": "create_time",
    "until": "expire_time",
}


def show_approval(approval: Any) -> None:
    facts = {
        "approval": approval.id,
        "workflow": approval.workflow,
        "node": approval.node,
        "title": approval.title,
        "state": render.cell(approval, "state"),
        "asked": render.date(approval.create_time),
        "until": render.date(approval.expire_time),
        "for": ", ".join(approval.assignees),
        "required": str(approval.required),
        "form": render.compact(approval.form) if approval.form.fields else "",
    }
    render.facts(facts, width=10)
    # Several may be of one second.
    for made in approval.decisions:
        words = (render.cell(made, "decision"), "by", made.caller or "a key without a title", made.comment)
        render.facts({render.date(made.time): " ".join(filter(None, words))}, width=10)


@command(approvals, "list", shows=render.listing("approvals", COLUMNS))
def list_approvals(
    api: Api,
    filter_: Annotated[
        str,
        typer.Option(
            "--filter", help='Like state = PENDING AND assignee = "role:ADMIN". docs/filters.md has the fields.'
        ),
    ] = "state = PENDING",
    limit: LimitOption = 50,
    page_token: PageOption = "",
) -> Any:
    """List the approvals that are pending, or those of a filter.

    \b
    Examples:
      windlass approvals list --filter 'state = PENDING AND workflow = "intake"'
    """
    return api.call(messages.ListApprovalsRequest(filter=filter_, page_size=limit, page_token=page_token))


@command(approvals, "get", shows=show_approval)
def get_approval(api: Api, approval_id: ApprovalArgument) -> Any:
    """Show an approval with its form and its decisions."""
    return api.call(messages.GetApprovalRequest(approval_id=approval_id)).approval


@command(approvals, "decide", shows=show_approval)
def decide_approval(
    api: Api,
    approval_id: ApprovalArgument,
    decision: Annotated[ApproveOrReject, typer.Argument(metavar="APPROVE|REJECT", case_sensitive=False)],
    form: Annotated[
        str,
        typer.Option("--form", metavar="JSON", help="A JSON object that fits the form; @FILE reads it from a file."),
    ] = "",
    comment: Annotated[str, typer.Option(help="Kept with the decision.")] = "",
) -> Any:
    """Decide an approval.

    \b
    Examples:
      windlass approvals decide APPROVAL_ID APPROVE --comment "as agreed"
      windlass approvals decide APPROVAL_ID APPROVE --form '{"amount": 5}'
    """
    request = messages.DecideApprovalRequest(
        approval_id=approval_id,
        decision=messages.Approval.Choice.Value(decision.upper()),
        comment=comment,
        request_id=str(uuid.uuid4()),
    )
    if form:
        request.form.CopyFrom(json_object(form, "--form"))
    return api.call(request).approval
