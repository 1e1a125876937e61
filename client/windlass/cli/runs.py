"""Runs: the attempts at nodes, what they were given to work on, and what they returned."""

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from windlass.cli import messages, outside_work, render
from windlass.cli.arguments import PageOption, RunIdArgument
from windlass.cli.connection import Api, command
from windlass.cli.forms import OutputForm, nameless, show, show_plain
from windlass.cli.output import say, say_pieces

# An output of 64 MiB over a slow line.
_OUTPUT_SECONDS: Final = 600.0
# The names of files that this process has open already.
_OPEN_FILE: Final = re.compile(r"/dev/(stdin|stdout|stderr|fd/\d+)|/proc/[^/]+/(task/\d+/)?fd/\d+")
_LINKS_MAX: Final = 40
RunStateName = Literal["PENDING", "LEASED", "RUNNING", "SUCCESS", "FAILED", "DLQ", "CANCELLED", "SKIPPED"]


run = typer.Typer(
    help="Look at a run, and end one that waits for somebody else.", no_args_is_help=True, rich_markup_mode=None
)


def register(app: typer.Typer) -> None:
    command(app, shows=_show_list)(runs)
    command(app, shows=render.print_json)(inputs)
    command(run)(get)
    command(run)(output)
    outside_work.register(run)
    app.add_typer(run, name="run")


def runs(
    api: Api,
    execution_id: Annotated[
        str, typer.Argument(metavar="EXECUTION_ID", help="Without it: those of the workspace, newest first.")
    ] = "",
    node: Annotated[str, typer.Option(help="Only those of this node; NODE$undo are those that undo it.")] = "",
    state: Annotated[RunStateName | None, typer.Option(help="Only those in this state.")] = None,
    limit: Annotated[
        int | None, typer.Option(help="The most to list; all of an execution, otherwise 50.", min=1, max=1000)
    ] = None,
    page_token: PageOption = "",
) -> Any:
    """List the attempts at nodes, and when they ran.

    \b
    Examples:
      windlass runs EXECUTION_ID
      windlass runs --state DLQ --limit 10
    """
    request = messages.ListRunsRequest(execution_id=execution_id, node=node, page_size=1000, page_token=page_token)
    if state is not None:
        request.state = messages.Run.State.Value(state)
    if execution_id and limit is None:
        return api.whole(request)
    request.page_size = limit or 50
    return api.call(request)


FileOption = Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Write it there, and print nothing.")]


def inputs(api: Api, run_id: RunIdArgument, file: FileOption = None) -> Any:
    """Show the inputs and config of a run, as rendered.

    More than 1 MiB can only be written to a file."""
    if file is None:
        return api.call(messages.GetRunInputsRequest(run_id=run_id))
    answers = api.stream(messages.GetRunInputsJsonRequest(run_id=run_id), seconds=_OUTPUT_SECONDS)
    _write(file, (answer.data for answer in answers))
    raise typer.Exit


def get(api: Api, run_id: RunIdArgument, output_form: OutputForm = "table") -> None:
    """Show a run with all that is known of it."""
    found = api.call(messages.GetRunRequest(run_id=run_id)).run
    show(found, output_form, lambda found: _show(found, api.typed(f"windlass run output {found.id}")))


def output(api: Api, run_id: RunIdArgument, file: FileOption = None, output_form: OutputForm = "table") -> None:
    """Print the output of a run as JSON, whatever its size."""
    if output_form == "name":
        raise nameless()
    if file is not None and output_form == "yaml":
        raise typer.BadParameter("a file gets the output as it is, which is JSON", param_hint="--output")
    answers = api.stream(messages.GetRunOutputRequest(run_id=run_id), seconds=_OUTPUT_SECONDS)
    pieces = (answer.data for answer in answers)
    if file is not None:
        _write(file, pieces)
    elif output_form == "yaml":
        show_plain(json.loads(b"".join(pieces)), output_form)
    else:
        say_pieces(pieces)


def _write(file: Path, pieces: Iterable[bytes]) -> None:
    """A transfer that breaks off leaves the file as it was. What is no file, like a pipe, is written at once. A file
    that is open already, like /dev/stdout, is added to, because it may have lines that others have written."""
    is_other = _is_open_file(file) or (file.exists() and not file.is_file())
    if file.is_symlink() and not is_other:
        file = file.resolve()
    part = file if is_other else file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        to = part.open("ab" if is_other else "wb")
    except OSError as error:
        raise typer.BadParameter(f"cannot write {file}: {error.strerror}", param_hint="--output") from None
    try:
        with to:
            to.writelines(pieces)
        if not is_other:
            part.replace(file)
    finally:
        if not is_other:
            part.unlink(missing_ok=True)


def _is_open_file(file: Path) -> bool:
    """Whether it is the name of an open file, or a link to such a name. Links in /proc lead to the file itself."""
    for _ in range(_LINKS_MAX):
        file = Path(os.path.normpath(file.absolute()))
        if _OPEN_FILE.fullmatch(str(file)):
            return True
        if not file.is_symlink():
            return False
        file = file.parent / file.readlink()
    return False


def _show(run: Any, output_command: str) -> None:
    facts = {
        "run": run.id,
        "execution": run.execution_id,
        "node": render.work_name(run),
        "module": run.module,
        "attempt": str(run.attempt or ""),
        "state": render.cell(run, "state"),
        "runner": run.runner,
        "created": render.date(run.create_time),
        "began": render.date(run.start_time),
        "ended": render.date(run.end_time),
        "took": render.duration(run.duration),
        "heard": render.date(run.heartbeat_time),
        "progress": _progress(run.progress) if run.HasField("progress") else "",
        "output": render.compact(run.output) if run.HasField("output") else "",
        "error": _run_error(run),
        "next try": render.date(run.retry_time),
        "tokens": str(run.cost_tokens or ""),
        "effect key": run.effect_key,
        "trace": run.trace_id,
    }
    if run.HasField("output_ref"):
        facts["output"] = f"{run.output_ref.size_bytes} bytes: {output_command}"
    render.facts(facts, width=10)


def _progress(progress: Any) -> str:
    return f"{progress.fraction:.0%} {progress.message}".strip()


def _show_list(answer: Any) -> None:
    executions = {run.execution_id for run in answer.runs}
    if len(executions) > 1:
        render.table(answer.runs, {**RUN_COLUMNS, "run": "id", "began": "start_time"})
    else:
        show_runs(answer.runs)
    render.tell_of_more(answer)


def _run_error(run: Any) -> str:
    return render.error(run.error)


RUN_COLUMNS: render.Columns = {
    "run": lambda run: run.id.rpartition(".")[2],
    "node": render.work_name,
    "module": "module",
    "attempt": lambda run: str(run.attempt or ""),
    "state": "state",
    "began": lambda run: render.clock(run.start_time),
    "took": "duration",
    "runner": "runner",
    "error": _run_error,
}


def show_runs(found: Any) -> None:
    """A table of attempts and, below it, their timeline."""
    render.table(found, RUN_COLUMNS)
    say()
    render.timeline(found)
