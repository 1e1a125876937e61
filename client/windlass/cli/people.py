"""What a person can do with executions that are there: cancel them, pause them, let them go on, have failed work done
again, in the same execution or in a fork.

Ids are called one by one. For a filter the server has a job, except for forks."""

import uuid
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from windlass.cli import bulk_jobs, messages, render
from windlass.cli.bulk_jobs import WaitOption
from windlass.cli.choosing import DryRunOption, do_for_each, is_by_filter
from windlass.cli.connection import Api, JsonOption, command
from windlass.cli.executions import json_object
from windlass.cli.output import say

_IDS_HELP = "Ids of executions; - reads them from the standard input, one in each line."
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="[EXECUTION_ID]...", help=_IDS_HELP)]
FilterOption = Annotated[
    str, typer.Option("--filter", help="All executions for which this is true. docs/filters.md has the fields.")
]


def register(app: typer.Typer) -> None:
    for each in (cancel, pause, resume, retry, fork):
        command(app)(each)


def cancel(
    api: Api,
    execution_ids: IdsArgument = None,
    filter_: FilterOption = "",
    reason: Annotated[str, typer.Option(help="Kept as the message of its error.")] = "",
    dry_run: DryRunOption = False,
    wait: WaitOption = True,
    as_json: JsonOption = False,
) -> None:
    """Cancel executions. Their running nodes are told to stop."""

    def do(execution_id: str) -> Any:
        return api.call(messages.CancelExecutionRequest(execution_id=execution_id, reason=reason)).execution

    many = messages.BulkExecutionsRequest(
        filter=filter_, action=messages.BulkJob.CANCEL, reason=reason, dry_run=dry_run
    )
    _do(api, execution_ids, do, many, wait=wait, as_json=as_json)


def pause(
    api: Api,
    execution_ids: IdsArgument = None,
    filter_: FilterOption = "",
    reason: Annotated[str, typer.Option(help="Shown with the execution while it is paused.")] = "",
    dry_run: DryRunOption = False,
    wait: WaitOption = True,
    as_json: JsonOption = False,
) -> None:
    """Pause executions: what runs may finish, nothing new begins."""

    def do(execution_id: str) -> Any:
        return api.call(messages.PauseExecutionRequest(execution_id=execution_id, reason=reason)).execution

    many = messages.BulkExecutionsRequest(filter=filter_, action=messages.BulkJob.PAUSE, reason=reason, dry_run=dry_run)
    _do(api, execution_ids, do, many, wait=wait, as_json=as_json)


def resume(
    api: Api,
    execution_ids: IdsArgument = None,
    filter_: FilterOption = "",
    dry_run: DryRunOption = False,
    wait: WaitOption = True,
    as_json: JsonOption = False,
) -> None:
    """Let paused executions go on."""

    def do(execution_id: str) -> Any:
        return api.call(
            messages.ResumeExecutionRequest(execution_id=execution_id, request_id=str(uuid.uuid4()))
        ).execution

    many = messages.BulkExecutionsRequest(filter=filter_, action=messages.BulkJob.RESUME, dry_run=dry_run)
    _do(api, execution_ids, do, many, wait=wait, as_json=as_json)


def retry(
    api: Api,
    execution_ids: IdsArgument = None,
    filter_: FilterOption = "",
    from_node: Annotated[str, typer.Option(metavar="NODE", help="Begin with this node, also if it succeeded.")] = "",
    overrides: Annotated[
        str,
        typer.Option(
            "--inputs", metavar="JSON", help='Laid over the inputs of nodes: {"node": {…}}; @FILE reads it from a file.'
        ),
    ] = "{}",
    dry_run: DryRunOption = False,
    wait: WaitOption = True,
    as_json: JsonOption = False,
) -> None:
    """Do failed nodes again, and what depends on them."""
    laid_over = json_object(overrides, "--inputs")

    def do(execution_id: str) -> Any:
        request = messages.RetryExecutionRequest(
            execution_id=execution_id, from_node=from_node, input_overrides=laid_over, request_id=str(uuid.uuid4())
        )
        return api.call(request).execution

    many = messages.BulkExecutionsRequest(
        filter=filter_, action=messages.BulkJob.RETRY, from_node=from_node, input_overrides=laid_over, dry_run=dry_run
    )
    _do(api, execution_ids, do, many, wait=wait, as_json=as_json)


def fork(
    api: Api,
    execution_ids: IdsArgument = None,
    filter_: FilterOption = "",
    from_node: Annotated[str, typer.Option(metavar="NODE", help="Do this node, and all that depends on it.")] = "",
    version: Annotated[int, typer.Option(help="The version of the forks; 0 is that of their origin.", min=0)] = 0,
    input_: Annotated[
        str, typer.Option("--input", metavar="JSON", help="Another input, a JSON object; @FILE reads it from a file.")
    ] = "",
    same_as: Annotated[
        str, typer.Option("--request-id", help="A second fork with the same id starts nothing new. For one execution.")
    ] = "",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Start executions that take over what these did well."""
    values = json_object(input_, "--input") if input_ else None
    if same_as and (filter_ or len(execution_ids or ()) != 1 or execution_ids == ["-"]):
        raise typer.BadParameter("it names the fork of one execution; give one id", param_hint="--request-id")

    def do(execution_id: str) -> Any:
        request = messages.ForkExecutionRequest(
            execution_id=execution_id,
            from_node=from_node,
            version=version,
            input=values,
            request_id=same_as or str(uuid.uuid4()),
        )
        return api.call(request).execution

    ids: Sequence[str] = execution_ids or ()
    if is_by_filter(ids, filter_):
        found = api.whole(messages.ListExecutionsRequest(filter=filter_, page_size=1000))
        ids = [execution.id for execution in found.executions]
    do_for_each(ids, do, render.print_json if as_json else _show, is_dry_run=dry_run)


def _do(api: Api, ids: list[str] | None, do: Callable[[str], Any], many: Any, *, wait: bool, as_json: bool) -> None:
    if is_by_filter(ids, many.filter):
        bulk_jobs.run(api, many, wait=wait, as_json=as_json)
    else:
        do_for_each(ids or (), do, render.print_json if as_json else _show, is_dry_run=many.dry_run)


def _show(execution: Any) -> None:
    origin = f", fork of {execution.origin_execution_id}" if execution.origin_execution_id else ""
    state = render.cell(execution, "state")
    is_paused_in_queue = state == "PENDING" and execution.HasField("pause")
    say(f"{execution.id} {state}{', paused before it begins' if is_paused_in_queue else ''}{origin}")
