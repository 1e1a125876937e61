"""`windlass workflow …`: definitions and their versions."""

import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from windlass.cli import messages, render
from windlass.cli.connection import Api, command
from windlass.cli.forms import OutputForm, show, show_line
from windlass.cli.output import say, say_file, visible

app = typer.Typer(help="Apply, show and archive workflows.", no_args_is_help=True, rich_markup_mode=None)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON; - reads the standard input.")]
NameArgument = Annotated[str, typer.Argument(metavar="WORKFLOW")]
COLUMNS = {
    "workflow": "workflow",
    "version": "version",
    "changed": "update_time",
    "archived": "archive_time",
    "description": "description",
}


def _show_applied(answer: Any) -> None:
    change = messages.ApplyWorkflowResponse.Change.Name(answer.change)
    say(f"{answer.workflow.workflow} version {answer.workflow.version} {change}")
    _show_faults("warning", answer.warnings)


def register(tree: typer.Typer) -> None:
    command(tree)(validate)
    command(tree, "apply")(apply_all)


@command(app, shows=_show_applied)
def apply(
    api: Api,
    file: FileArgument,
    etag: Annotated[str, typer.Option(help="Refuse if the workflow has changed since this etag was read.")] = "",
) -> Any:
    """Create a workflow, or a new version of it."""
    return api.call(messages.ApplyWorkflowRequest(**read_source(file)._asdict(), etag=etag))


def apply_all(
    api: Api,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="More files, as a shell makes them of *.yaml.")
    ] = None,
    more: Annotated[
        list[Path] | None,
        typer.Option("-f", "--file", metavar="FILE", help="A definition; - is the standard input; repeat it for more."),
    ] = None,
    output_form: OutputForm = "table",
) -> None:
    """Create workflows, or new versions of them, from files.

    They are applied in this order, until one is refused.

    \b
    Examples:
      windlass apply workflows/*.yaml
    """
    found = [*(more or ()), *(files or ())]
    if not found:
        raise typer.BadParameter("give a file with -f FILE")
    for source in [read_source(each) for each in found]:
        show_line(api.call(messages.ApplyWorkflowRequest(**source._asdict())), output_form, _show_applied)


@command(app)
def validate(
    api: Api,
    file: FileArgument,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no stack. The modules that runners announce are then unknown.")
    ] = False,
    output_form: OutputForm = "table",
) -> None:
    """Report every fault of a definition, and record nothing. Exit code 1 if there is one."""
    source = read_source(file)
    if offline:
        answer = _validated_here(source)
    else:
        answer = api.call(messages.ValidateWorkflowRequest(**source._asdict()))
    show(answer, output_form, _show_verdict)
    raise typer.Exit(1 if answer.faults else 0)


def _show_verdict(answer: Any) -> None:
    _show_faults("fault", answer.faults)
    _show_faults("warning", answer.warnings)
    if not answer.faults:
        say("no fault")


def _show(workflow: Any) -> None:
    # On standard error, so that standard output can be compared with the file.
    say(f"# {workflow.workflow} version {workflow.version}, etag {workflow.etag}", err=True)
    say_file(workflow.source)


@command(app, shows=_show)
def get(
    api: Api,
    workflow: NameArgument,
    version: Annotated[int, typer.Option(help="The version to print; 0 is the newest.", min=0)] = 0,
) -> Any:
    """Print a definition as it was written. With --json: all that is known of it."""
    return api.call(messages.GetWorkflowRequest(workflow=workflow, version=version)).workflow


@command(app, "list", shows=render.listing("workflows", COLUMNS))
def list_(
    api: Api, archived: Annotated[bool, typer.Option("--archived", help="List archived ones too.")] = False
) -> Any:
    """List all workflows, by name."""
    return api.whole(messages.ListWorkflowsRequest(page_size=1000, show_archived=archived))


@command(app, shows=render.listing("versions", {"version": "version", "made": "create_time"}))
def versions(api: Api, workflow: NameArgument) -> Any:
    """List all versions of a workflow, newest first."""
    return api.whole(messages.ListWorkflowVersionsRequest(workflow=workflow, page_size=1000))


@command(app)
def archive(api: Api, workflow: NameArgument, output_form: OutputForm = "table") -> None:
    """Archive a workflow: it can no longer be started or changed."""
    archived = api.call(messages.ArchiveWorkflowRequest(workflow=workflow)).workflow
    undo = api.typed(f"windlass workflow restore {workflow}")
    show(archived, output_form, lambda archived: say(f"{archived.workflow} is archived; undo it with: {undo}"))


@command(app, shows=lambda workflow: say(f"{workflow.workflow} can be started again"))
def restore(api: Api, workflow: NameArgument) -> Any:
    """Restore an archived workflow."""
    return api.call(messages.RestoreWorkflowRequest(workflow=workflow)).workflow


class Source(NamedTuple):
    source: str
    # The name of a Workflow.SourceFormat.
    source_format: Any


def read_source(file: Path) -> Source:
    """The text of a definition. A file that is unreadable or empty is a usage error."""
    try:
        text = (sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()).decode()
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{file} is not text in UTF-8: {error.reason} at byte {error.start}") from None
    if not text.strip():
        raise typer.BadParameter(f"{file} is empty; a definition is an object with name, nodes and edges")
    return Source(text, "JSON" if file.suffix == ".json" else "YAML")


def _validated_here(source: Source) -> Any:
    """The answer of ValidateWorkflow, as far as it is known without a stack."""
    from windlass.definition.examination import examine_text
    from windlass.definition.parsing import Format
    from windlass.definition.verdict import warnings_of

    verdict = examine_text(source.source, Format(source.source_format))
    return messages.ValidateWorkflowResponse(
        faults=[messages.Fault(**fault._asdict()) for fault in verdict.faults],
        warnings=[messages.Fault(**warning._asdict()) for warning in warnings_of(verdict, ())],
    )


def _show_faults(kind: str, faults: Any) -> None:
    from windlass.definition.faults import place_of

    for fault in faults:
        place = place_of(fault.node, fault.line)
        where = "".join(f"{part}: " for part in (kind, place, fault.path) if part)
        say(visible(f"{where}{fault.message} ({fault.reason})"))
