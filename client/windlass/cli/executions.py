"""Executions: look at one, list them, and say what one waits for."""

from typing import Annotated, Any, Final

import typer

from windlass.cli import messages, render
from windlass.cli.arguments import IdArgument, LimitOption, PageOption
from windlass.cli.connection import Api, command
from windlass.cli.events import tell_newest
from windlass.cli.forms import OutputForm, show
from windlass.cli.output import say

_FILTER_HELP = """Only those for which this is true, like (state = FAILED OR error:type) AND workflow = "in*" AND NOT
labels.region = eu. OR binds tighter than AND. docs/filters.md has the fields."""
# Of the children of an execution that is shown.
CHILDREN_SHOWN_MAX = 20
# A line of an explanation that names a command begins with this.
_TRY: Final = "    try: "


def register(app: typer.Typer) -> None:
    command(app)(get)
    command(app)(explain)
    command(app, "list", shows=render.listing("executions", COLUMNS))(list_)


def get(
    api: Api,
    execution_id: IdArgument,
    as_of_seq: Annotated[int, typer.Option(help="As it was after the event with this number.", min=0)] = 0,
    output_form: OutputForm = "table",
) -> None:
    """Show an execution and its result. While it goes on, also show the children that it waits for."""
    execution = api.call(messages.GetExecutionRequest(execution_id=execution_id, as_of_seq=as_of_seq)).execution
    show(execution, output_form, show_execution)
    if as_of_seq > execution.last_seq:
        tell_newest(execution.last_seq)
    if output_form == "table" and not execution.HasField("end_time") and not as_of_seq:
        _show_children(api, execution_id)


def _show_children(api: Api, execution_id: str) -> None:
    going = " OR ".join(f"state = {state}" for state in ("PENDING", "RUNNING", "WAITING", "PAUSED"))
    filter_ = f'parent_execution_id = "{execution_id}" AND ({going})'
    answer = api.call(messages.ListExecutionsRequest(filter=filter_, page_size=CHILDREN_SHOWN_MAX))
    if answer.executions:
        say()
        say("children")
        render.table(answer.executions, COLUMNS)
    if answer.next_page_token:
        all_of_them = f"windlass list --filter 'parent_execution_id = \"{execution_id}\"'"
        say(f"and more: {api.typed(all_of_them)}")


def explain(api: Api, execution_id: IdArgument, output_form: OutputForm = "table") -> None:
    """Say what an execution waits for, and where its time went."""
    explanation = api.call(messages.ExplainExecutionRequest(execution_id=execution_id)).explanation
    show(explanation, output_form, lambda explanation: say(_with_hints(api, explanation.text)))


def _with_hints(api: Api, text: str) -> str:
    """The text with its commands as they are typed here. Each has a line of its own."""
    lines = text.split("\n")
    return "\n".join(f"{_TRY}{api.typed(line[len(_TRY) :])}" if line.startswith(_TRY) else line for line in lines)


def list_(
    api: Api,
    filter_: Annotated[str, typer.Option("--filter", help=_FILTER_HELP)] = "",
    limit: LimitOption = 50,
    page_token: PageOption = "",
) -> Any:
    """List executions, newest first.

    \b
    Examples:
      windlass list --filter 'state = FAILED AND create_time > "2026-11-01T00:00:00Z"'
      windlass list --filter 'labels.region = eu' --limit 10 -o name
    """
    return api.call(messages.ListExecutionsRequest(filter=filter_, page_size=limit, page_token=page_token))


COLUMNS: render.Columns = {
    "execution": "id",
    "workflow": lambda execution: f"{execution.workflow}@{execution.version}",
    "state": "state",
    "created": "create_time",
    "took": "metrics.duration",
}
# The lists of a summary, with their titles, in the order in which they are shown.
_SUMMARY: Final = {
    **{name: name for name in ("running", "succeeded", "failed", "skipped", "blocked", "cancelled")},
    "compensated": "undone",
    "not_compensated": "not undone",
}


def show_execution(execution: Any) -> None:
    error, metrics = execution.error, execution.metrics
    facts = {
        "execution": execution.id,
        "workflow": f"{execution.workflow}@{execution.version}",
        "state": render.cell(execution, "state"),
        "fork of": execution.origin_execution_id,
        "imported from": execution.imported_execution_id,
        "created": render.date(execution.create_time),
        "took": render.cell(execution, "metrics.duration"),
        "input": render.compact(execution.input),
        "output": render.compact(execution.output) if execution.HasField("output") else "",
        "labels": ", ".join(f"{name}={value}" for name, value in sorted(execution.labels.items())),
        "error": f"{render.node_name(error.node)} {render.error(error)}".strip(),
        "paused": _paused(execution.pause) if execution.HasField("pause") else "",
    }
    for name, title in _SUMMARY.items():
        facts[title] = ", ".join(map(render.node_name, getattr(execution.summary, name)))
    facts["runs"] = render.run_count(metrics.runs, metrics.retries) if metrics.runs else ""
    facts["trace"] = execution.trace_id
    render.facts(facts, width=10)


def _paused(pause: Any) -> str:
    return f"by {pause.caller} since {render.date(pause.time)}{': ' if pause.reason else ''}{pause.reason}"
