"""`windlass approvals …`: what people are asked to decide; `windlass run …`: work that somebody else finishes."""

import os
import sys
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from windlass.cli import messages, render
from windlass.cli.connection import Api, Unusable, command
from windlass.cli.executions import json_object
from windlass.cli.output import say

approvals = typer.Typer(help="List, look at and decide approvals.", no_args_is_help=True, rich_markup_mode=None)
run = typer.Typer(help="End work that a module has left to somebody else.", no_args_is_help=True, rich_markup_mode=None)

ApproveOrReject = Literal["APPROVE", "REJECT"]
ApprovalArgument = Annotated[str, typer.Argument(metavar="APPROVAL_ID")]
TokenFileOption = Annotated[
    str,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="The file with the token; - reads it from standard input. Or set WINDLASS_TOKEN.",
    ),
]
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


def _show(approval: Any) -> None:
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
    for made in approval.decisions:
        words = (render.cell(made, "decision"), "by", made.caller or "a key without a title", made.comment)
        facts[render.date(made.time)] = " ".join(filter(None, words))
    for name, value in facts.items():
        if value:
            render.console().print(f"{name:<10} {render.coloured(value)}", soft_wrap=True)


@command(approvals, "list", shows=render.listing("approvals", COLUMNS))
def list_approvals(
    api: Api,
    filter_: Annotated[
        str,
        typer.Option(
            "--filter", help='Like state = PENDING AND assignee = "role:ADMIN". docs/filters.md has the fields.'
        ),
    ] = "state = PENDING",
    limit: Annotated[int, typer.Option(help="The most to list.", min=1, max=1000)] = 50,
) -> Any:
    """List the approvals that are pending, or those of a filter."""
    return api.call(messages.ListApprovalsRequest(filter=filter_, page_size=limit))


@command(approvals, "get", shows=_show)
def get_approval(api: Api, approval_id: ApprovalArgument) -> Any:
    """Show an approval with its form and its decisions."""
    return api.call(messages.GetApprovalRequest(approval_id=approval_id)).approval


@command(approvals, "decide", shows=_show)
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
    """Decide an approval."""
    request = messages.DecideApprovalRequest(
        approval_id=approval_id,
        decision=messages.Approval.Choice.Value(decision.upper()),
        comment=comment,
        request_id=str(uuid.uuid4()),
    )
    if form:
        request.form.CopyFrom(json_object(form, "--form"))
    return api.call(request).approval


@command(run, "complete")
def complete_run(
    api: Api,
    output: Annotated[
        str, typer.Option("--output", metavar="JSON", help="The output, a JSON object; @FILE reads it from a file.")
    ] = "{}",
    branch: Annotated[str, typer.Option(help="The branch that is taken.")] = "",
    token_file: TokenFileOption = "",
) -> None:
    """The work is done. No key is needed beside the token."""
    values = json_object(output, "--output")
    request = messages.CompleteRunRequest(token=_token(token_file), output=values, branch=branch)
    say(f"run {api.call(request, key='').run_id} is completed")


@command(run, "fail")
def fail_run(
    api: Api,
    type_: Annotated[str, typer.Option("--type", help="The type of the error, like CARD_DECLINED.")] = "",
    message: Annotated[str, typer.Option(help="For people.")] = "",
    retryable: Annotated[bool, typer.Option("--retryable", help="The node may try it again.")] = False,
    token_file: TokenFileOption = "",
) -> None:
    """The work has failed. No key is needed beside the token."""
    token = _token(token_file)
    request = messages.FailRunRequest(token=token, type=type_, message=message, retryable=retryable)
    say(f"run {api.call(request, key='').run_id} has failed")


@command(run, "heartbeat")
def heartbeat_run(
    api: Api,
    progress: Annotated[float | None, typer.Option(help="From 0 to 1.", min=0, max=1)] = None,
    message: Annotated[str | None, typer.Option(help="For people.")] = None,
    token_file: TokenFileOption = "",
) -> None:
    """Somebody is at work. No key is needed beside the token."""
    request = messages.HeartbeatRunRequest(token=_token(token_file), progress=progress, message=message)
    say(f"run {api.call(request, key='').run_id} goes on")


def _token(file: str) -> str:
    """It is never taken as an argument, because command lines are public."""
    if not file and (given := os.environ.get("WINDLASS_TOKEN")):
        return given
    if not file:
        raise Unusable("no token is given; name its file with --token-file, or set WINDLASS_TOKEN")
    return (sys.stdin.read() if file == "-" else Path(file).read_text()).strip()
