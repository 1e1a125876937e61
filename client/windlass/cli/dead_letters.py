"""`windlass dead-letters …`: work that was set aside, until a person decides about it."""

import json
import uuid
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from windlass.cli import messages, render
from windlass.cli.arguments import LimitOption, PageOption, json_object, text_of
from windlass.cli.choosing import DryRunOption, do_for_each, is_by_filter
from windlass.cli.connection import Api, command
from windlass.cli.forms import OutputForm, nameless, show, show_line
from windlass.cli.output import say

app = typer.Typer(help="List and resolve work that failed for good.", no_args_is_help=True, rich_markup_mode=None)

_FILTER_HELP = "Only those for which this is true, like resolution = PENDING. docs/dead-letters.md has the fields."
LetterIdsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Ids of dead letters; - reads them from standard input, one in each line."),
]
LetterIdArgument = Annotated[str, typer.Argument(metavar="ID")]
LetterFilterOption = Annotated[str, typer.Option("--filter", help=_FILTER_HELP)]
NotesOption = Annotated[str, typer.Option(help="Kept with the dead letter.")]

COLUMNS: render.Columns = {
    "dead letter": "id",
    "workflow": lambda letter: f"{letter.workflow}@{letter.version}",
    "node": lambda letter: render.node_name(letter.node),
    "reason": "reason",
    "error": lambda letter: render.error(letter.error),
    "since": "quarantine_time",
    "resolution": "resolution",
}
GROUP_COLUMNS: render.Columns = {
    "fingerprint": "fingerprint",
    "count": lambda group: str(group.count),
    "newest": "last_time",
    "workflows": lambda group: ", ".join(group.workflows),
    "error": lambda group: render.error(group.sample.error),
    "sample": lambda group: group.sample.id,
}


@command(app, "list", shows=render.listing("dead_letters", COLUMNS))
def list_(
    api: Api, filter_: LetterFilterOption = "resolution = PENDING", limit: LimitOption = 50, page_token: PageOption = ""
) -> Any:
    """List dead letters, newest first.

    \b
    Examples:
      windlass dead-letters list --filter 'workflow = "intake" AND reason = MAX_RETRIES'
    """
    return api.call(messages.ListDeadLettersRequest(filter=filter_, page_size=limit, page_token=page_token))


@command(app, shows=render.listing("groups", GROUP_COLUMNS))
def groups(api: Api, filter_: LetterFilterOption = "resolution = PENDING") -> Any:
    """Count dead letters that look alike."""
    return api.call(messages.ListDeadLetterGroupsRequest(filter=filter_))


def _show(letter: Any) -> None:
    facts = {
        "dead letter": letter.id,
        "execution": letter.execution_id,
        "workflow": f"{letter.workflow}@{letter.version}",
        "node": render.node_name(letter.node),
        "module": letter.module,
        "reason": render.cell(letter, "reason"),
        "error": render.error(letter.error),
        "fingerprint": letter.error.fingerprint,
        "attempts": str(letter.attempts or ""),
        "since": render.date(letter.quarantine_time),
        "inputs": render.compact(letter.inputs) if letter.HasField("inputs") else "",
        "config": render.compact(letter.config) if letter.HasField("config") else "",
        "templates": letter.not_rendered,
        "resolution": render.cell(letter, "resolution"),
        "resolved": render.date(letter.resolve_time),
        "reviewer": letter.reviewer,
        "notes": letter.notes,
        "new run": letter.requeued_run_id,
    }
    render.facts(facts, width=11)


@command(app, shows=_show)
def get(api: Api, dead_letter_id: LetterIdArgument) -> Any:
    """Show a dead letter with all that is known of it."""
    return api.call(messages.GetDeadLetterRequest(dead_letter_id=dead_letter_id)).dead_letter


@command(app)
def requeue(
    api: Api,
    dead_letter_ids: LetterIdsArgument = None,
    filter_: LetterFilterOption = "",
    inputs: Annotated[
        str, typer.Option(metavar="JSON", help="Laid over the inputs of the node; @FILE reads it from a file.")
    ] = "{}",
    notes: NotesOption = "",
    dry_run: DryRunOption = False,
    output_form: OutputForm = "table",
) -> None:
    """Do the work again, and what depends on it.

    \b
    Examples:
      windlass dead-letters requeue DEAD_LETTER_ID --inputs '{"amount": 5}' --notes "corrected by hand"
    """
    laid_over = json_object(inputs, "--inputs")

    def do(letter_id: str) -> Any:
        request = messages.RequeueDeadLetterRequest(
            dead_letter_id=letter_id, input_overrides=laid_over, notes=notes, request_id=str(uuid.uuid4())
        )
        return api.call(request).dead_letter

    _do(api, _chosen(api, dead_letter_ids, filter_), do, is_dry_run=dry_run, output_form=output_form)


@command(app)
def redrive(
    api: Api,
    filter_: Annotated[str, typer.Option("--filter", help=_FILTER_HELP)],
    inputs: Annotated[
        str, typer.Option(metavar="JSON", help="Laid over the inputs of each node; @FILE reads it from a file.")
    ] = "{}",
    notes: NotesOption = "",
    dry_run: DryRunOption = False,
    output_form: OutputForm = "table",
) -> None:
    """Requeue one, then a few, then all, until they fail again.

    \b
    Examples:
      windlass dead-letters redrive --filter 'error.fingerprint = "0f3a5c"' --dry-run
    """
    from windlass.api.v1.dead_letters_pb2_grpc import DeadLetterServiceStub

    if output_form == "name":
        raise nameless()
    request = messages.BulkResolveDeadLettersRequest(
        filter=filter_,
        action=messages.BulkResolveDeadLettersRequest.REQUEUE,
        dry_run=dry_run,
        input_overrides=json_object(inputs, "--inputs"),
        notes=notes,
    )
    stub: Any = DeadLetterServiceStub(api.channel)
    last = None
    try:
        for last in stub.BulkResolveDeadLetters(request, metadata=api.metadata()):
            # Without a match, the count is followed by an end that says the same.
            if dry_run or last.total or last.stage == last.DONE:
                show_line(last, output_form, _show_count if dry_run else _show_progress)
    except KeyboardInterrupt:
        say("what was requeued goes on; no other is; to go on, type the same again", err=True)
        raise
    raise typer.Exit(1 if last is not None and last.message else 0)


def _show_count(progress: Any) -> None:
    say(f"{progress.total} dead {'letter matches' if progress.total == 1 else 'letters match'}; nothing was done")


def _show_progress(progress: Any) -> None:
    counts = f"{progress.resolved} of {progress.total} requeued"
    ended = f", {progress.succeeded} succeeded, {progress.failed_again} failed again" if progress.resolved else ""
    ended += f", {progress.cancelled} cancelled or timed out" if progress.cancelled else ""
    say(f"{counts}{ended}{': ' if progress.message else ''}{progress.message}")


@command(app)
def discard(
    api: Api,
    dead_letter_ids: LetterIdsArgument = None,
    filter_: LetterFilterOption = "",
    notes: NotesOption = "",
    dry_run: DryRunOption = False,
    output_form: OutputForm = "table",
) -> None:
    """Decide that nobody will do the work.

    \b
    Examples:
      windlass dead-letters discard DEAD_LETTER_ID --notes "a test"
    """

    def do(letter_id: str) -> Any:
        return api.call(messages.DiscardDeadLetterRequest(dead_letter_id=letter_id, notes=notes)).dead_letter

    _do(api, _chosen(api, dead_letter_ids, filter_), do, is_dry_run=dry_run, output_form=output_form)


@command(app)
def fix(
    api: Api,
    dead_letter_id: LetterIdArgument,
    output: Annotated[
        str, typer.Option(metavar="JSON", help="The output of the node; @FILE reads it from a file.")
    ] = "null",
    notes: NotesOption = "",
    output_form: OutputForm = "table",
) -> None:
    """Give the output of work that was done by hand.

    \b
    Examples:
      windlass dead-letters fix DEAD_LETTER_ID --output '{"paid": true}'
    """
    from google.protobuf.json_format import ParseDict

    request = messages.MarkDeadLetterFixedRequest(dead_letter_id=dead_letter_id, notes=notes)
    try:
        ParseDict(json.loads(text_of(output, "--output")), request.output)
    except ValueError as error:
        raise typer.BadParameter(f"this is not JSON: {error}", param_hint="--output") from None
    show(api.call(request).dead_letter, output_form, _show_line)


@command(app)
def quarantine(
    api: Api,
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID")],
    notes: NotesOption = "",
    output_form: OutputForm = "table",
) -> None:
    """Set the work of a run aside.

    The run is under way, or its work is to be tried again."""
    show(api.call(messages.QuarantineRunRequest(run_id=run_id, notes=notes)).dead_letter, output_form, _show_line)


def _chosen(api: Api, ids: Sequence[str] | None, filter_text: str) -> Sequence[str]:
    if not is_by_filter(ids, filter_text):
        return ids or ()
    found = api.whole(messages.ListDeadLettersRequest(filter=filter_text, page_size=1000))
    return [letter.id for letter in found.dead_letters if letter.resolution == messages.DeadLetter.PENDING]


def _do(api: Api, ids: Sequence[str], do: Any, *, is_dry_run: bool, output_form: OutputForm) -> None:
    do_for_each(ids, do, lambda letter: show(letter, output_form, _show_line), is_dry_run=is_dry_run)


def _show_line(letter: Any) -> None:
    say(f"{letter.id} {render.cell(letter, 'resolution')}")
