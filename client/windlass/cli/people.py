"""What a person can do with executions that are there: cancel them, pause them, let them go on, have failed work done
again, in the same execution or in a fork, and send them signals.

Ids are called one by one. For a filter the server has a job, except for forks and signals."""

import uuid
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from windlass.cli import bulk_jobs, messages, render
from windlass.cli.arguments import json_object
from windlass.cli.bulk_jobs import WaitOption
from windlass.cli.choosing import DryRunOption, do_for_each, is_by_filter
from windlass.cli.connection import Api, command
from windlass.cli.forms import OutputForm, show
from windlass.cli.output import say, visible

_IDS_HELP = "Ids of executions; - reads them from the standard input, one in each line."
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="EXECUTION_ID", help=_IDS_HELP)]
FilterOption = Annotated[
    str, typer.Option("--filter", help="All executions for which this is true. docs/filters.md has the fields.")
]


def register(app: typer.Typer) -> None:
    for each in (cancel, pause, resume, retry, fork, signal):
        command(app)(each)


def cancel(
    api: Api,
    execution_ids: IdsArgument = None,
    filter_: FilterOption = "",
    reason: Annotated[str, typer.Option(help="Kept as the message of its error.")] = "",
    dry_run: DryRunOption = False,
    wait: WaitOption = True,
    output_form: OutputForm = "table",
) -> None:
    """Cancel executions. Their running nodes are told to stop.

    \b
    Examples:
      windlass cancel EXECUTION_ID --reason "wrong input"
      windlass cancel --filter 'workflow = "intake" AND state = PENDING' --dry-run
    """

    def do(execution_id: str) -> Any:
        return api.call(messages.CancelExecutionRequest(execution_id=execution_id, reason=reason)).execution

    many = messages.BulkExecutionsRequest(
        filter=filter_, action=messages.BulkJob.CANCEL, reason=reason, dry_run=dry_run
    )
    _do(api, execution_ids, do, many, wait=wait, output_form=output_form)


def pause(
    api: Api,
    execution_ids: IdsArgument = None,
    filter_: FilterOption = "",
    reason: Annotated[str, typer.Option(help="Shown with the execution while it is paused.")] = "",
    dry_run: DryRunOption = False,
    wait: WaitOption = True,
    output_form: OutputForm = "table",
) -> None:
    """Pause executions: what runs may finish, nothing new begins.

    \b
    Examples:
      windlass pause EXECUTION_ID --reason "the bank is down"
      windlass pause --filter 'workflow = "intake"'
    """

    def do(execution_id: str) -> Any:
        request_id = str(uuid.uuid4())
        request = messages.PauseExecutionRequest(execution_id=execution_id, reason=reason, request_id=request_id)
        return api.call(request).execution

    many = messages.BulkExecutionsRequest(filter=filter_, action=messages.BulkJob.PAUSE, reason=reason, dry_run=dry_run)
    _do(api, execution_ids, do, many, wait=wait, output_form=output_form)


def resume(
    api: Api,
    execution_ids: IdsArgument = None,
    filter_: FilterOption = "",
    dry_run: DryRunOption = False,
    wait: WaitOption = True,
    output_form: OutputForm = "table",
) -> None:
    """Let paused executions go on.

    \b
    Examples:
      windlass resume EXECUTION_ID
      windlass resume --filter 'state = PAUSED'
    """

    def do(execution_id: str) -> Any:
        return api.call(
            messages.ResumeExecutionRequest(execution_id=execution_id, request_id=str(uuid.uuid4()))
        ).execution

    many = messages.BulkExecutionsRequest(filter=filter_, action=messages.BulkJob.RESUME, dry_run=dry_run)
    _do(api, execution_ids, do, many, wait=wait, output_form=output_form)


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
    output_form: OutputForm = "table",
) -> None:
    """Do failed nodes again, and what depends on them.

    \b
    Examples:
      windlass retry EXECUTION_ID
      windlass retry EXECUTION_ID --from-node pay --inputs '{"pay": {"amount": 5}}'
      windlass list --filter 'state = FAILED' -o name | windlass retry -
    """
    laid_over = json_object(overrides, "--inputs")

    def do(execution_id: str) -> Any:
        request = messages.RetryExecutionRequest(
            execution_id=execution_id, from_node=from_node, input_overrides=laid_over, request_id=str(uuid.uuid4())
        )
        return api.call(request).execution

    many = messages.BulkExecutionsRequest(
        filter=filter_, action=messages.BulkJob.RETRY, from_node=from_node, input_overrides=laid_over, dry_run=dry_run
    )
    _do(api, execution_ids, do, many, wait=wait, output_form=output_form)


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
    output_form: OutputForm = "table",
) -> None:
    """Start executions that take over what these did well.

    \b
    Examples:
      windlass fork EXECUTION_ID --from-node pay
      windlass fork EXECUTION_ID --version 4 --input @order.json
    """
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

    ids = _chosen(api, execution_ids, filter_)
    do_for_each(ids, do, lambda execution: show(execution, output_form, _show), is_dry_run=dry_run)


def signal(
    api: Api,
    *,
    execution_ids: IdsArgument = None,
    name: Annotated[str, typer.Argument(metavar="SIGNAL")],
    filter_: FilterOption = "",
    payload: Annotated[
        str, typer.Option("--payload", metavar="JSON", help="A JSON object; @FILE reads a file, @- the standard input.")
    ] = "{}",
    same_as: Annotated[
        str, typer.Option("--request-id", help="A second signal with the same id is not delivered again.")
    ] = "",
    dry_run: DryRunOption = False,
    output_form: OutputForm = "table",
) -> None:
    """Send a signal to executions.

    The node that waits for it goes on with the payload. If none waits, the signal is kept until one does, and standard
    error says so.

    \b
    Examples:
      windlass signal EXECUTION_ID paid --payload '{"amount": 5}'
    """
    values = json_object(payload, "--payload")

    def do(execution_id: str) -> Any:
        request = messages.SignalExecutionRequest(
            execution_id=execution_id, signal=name, payload=values, request_id=same_as or str(uuid.uuid4())
        )
        return api.call(request)

    def shown(answer: Any) -> None:
        show(answer.execution, output_form, _show)
        _tell_delivery(api, answer, name, is_alone=len(ids) == 1)

    ids = _chosen(api, execution_ids, filter_)
    do_for_each(ids, do, shown, is_dry_run=dry_run)


def _tell_delivery(api: Api, answer: Any, signal: str, *, is_alone: bool) -> None:
    """Say what has become of a signal that no node has taken. The name may be wrong."""
    id_, delivery = answer.execution.id, type(answer).Delivery.Name(answer.delivery)
    if delivery == "UNDER_WAY":
        say(f"{id_} gets the signal when it goes on; that is durable", err=True)
    elif delivery == "KEPT":
        say(visible(f'{id_}: no node waits for the signal "{signal}"; it is kept until one does'), err=True)
        if is_alone:
            blockers = api.call(messages.ExplainExecutionRequest(execution_id=id_)).explanation.blockers
            waits = [each.message for each in blockers if render.cell(each, "kind") == "WAITING_FOR_SIGNAL"]
            for wait in waits or ["no node waits for any signal now"]:
                say(visible(f"  {wait}"), err=True)


def _chosen(api: Api, ids: list[str] | None, filter_text: str) -> Sequence[str]:
    """The ids that were given, or those that the filter finds now."""
    if not is_by_filter(ids, filter_text):
        return ids or ()
    found = api.whole(messages.ListExecutionsRequest(filter=filter_text, page_size=1000)).executions
    own = [execution.id for execution in found if not execution.imported_execution_id]
    if copies := bulk_jobs.left_out(len(found) - len(own)):
        say(f"left out: {copies}", err=True)
    return own


def _do(
    api: Api, ids: list[str] | None, do: Callable[[str], Any], many: Any, *, wait: bool, output_form: OutputForm
) -> None:
    if is_by_filter(ids, many.filter):
        bulk_jobs.run(api, many, wait=wait, output_form=output_form)
    else:
        do_for_each(ids or (), do, lambda execution: show(execution, output_form, _show), is_dry_run=many.dry_run)


def _show(execution: Any) -> None:
    origin = f", fork of {execution.origin_execution_id}" if execution.origin_execution_id else ""
    state = render.cell(execution, "state")
    is_paused_in_queue = state == "PENDING" and execution.HasField("pause")
    say(f"{execution.id} {state}{', paused before it begins' if is_paused_in_queue else ''}{origin}")
