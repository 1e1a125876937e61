"""Compares two executions node by node: how each ended, what it worked on, and what it returned."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

import typer

from windlass.cli import messages, render
from windlass.cli.connection import Api, command
from windlass.cli.forms import OutputForm, show_plain
from windlass.cli.output import say, visible

_SHOWN_MAX = 60
# The name of a run among those of its execution: its node, and its iteration if it is that of a loop.
NodeRun = tuple[str, int]


class Difference(NamedTuple):
    # Empty: of the execution as a whole.
    node: str
    what: str
    first: str
    second: str


def register(app: typer.Typer) -> None:
    command(app)(diff)


def diff(
    api: Api,
    first: Annotated[str, typer.Argument(metavar="EXECUTION_ID")],
    second: Annotated[
        str, typer.Argument(metavar="OTHER_ID", help="Without it: the last success of the same workflow.")
    ] = "",
    output_form: OutputForm = "table",
) -> None:
    """Show what differs between two executions. Exit code 1 if anything does.

    \b
    Examples:
      windlass diff EXECUTION_ID OTHER_ID
    """
    one = api.call(messages.GetExecutionRequest(execution_id=first)).execution
    other_id = second or _last_success(api, one)
    other = api.call(messages.GetExecutionRequest(execution_id=other_id)).execution
    found = [*_of_executions(one, other), *_of_runs(_last_runs(api, first), _last_runs(api, other_id))]
    if output_form == "name":
        for node in dict.fromkeys(each.node for each in found):
            say(visible(node))
    elif output_form != "table":
        show_plain([each._asdict() for each in found], output_form)
    elif found:
        titles = ("node", "what", f"{first} ({one.workflow}@{one.version})", other_id)
        render.grid(titles, [(each.node, each.what, _short(each.first), _short(each.second)) for each in found])
    else:
        say(f"Nothing differs between {first} and {other_id}.")
    raise typer.Exit(1 if found else 0)


def _last_success(api: Api, execution: Any) -> str:
    filter_ = f'workflow = "{execution.workflow}" AND state = SUCCESS'
    answer = api.call(messages.ListExecutionsRequest(filter=filter_, page_size=2))
    for each in answer.executions:
        if each.id != execution.id:
            return str(each.id)
    say(visible(f"no other execution of {execution.workflow} has succeeded; name the one to compare with"), err=True)
    raise typer.Exit(1)


def _of_executions(one: Any, other: Any) -> Iterator[Difference]:
    sides = (one, other)
    for what in ("workflow", "version", "state"):
        yield from _unless_equal("", what, *(render.cell(each, what) for each in sides))
    for what in ("input", "output"):
        yield from _unless_equal("", what, *(_json(each, what) for each in sides))


def _of_runs(ones: Mapping[NodeRun, Any], others: Mapping[NodeRun, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys((*ones, *others)):
        shown = render.node_name(name[0]) + (f"[{name[1]}]" if name[1] else "")
        one, other = ones.get(name), others.get(name)
        if one is None or other is None:
            yield Difference(shown, "runs", "" if one is None else "has one", "" if other is None else "has one")
            continue
        sides = (one, other)
        for what in ("module", "state", "attempt", "inputs_hash", "config_hash"):
            yield from _unless_equal(shown, what, *(render.cell(each, what) for each in sides))
        yield from _unless_equal(shown, "output", *(_json(each, "output") for each in sides))
        yield from _unless_equal(shown, "error", *(f"{each.error.type} {each.error.message}".strip() for each in sides))


def _last_runs(api: Api, execution_id: str) -> dict[NodeRun, Any]:
    """The last run of each piece of work, in the order in which they began."""
    runs = api.whole(messages.ListRunsRequest(execution_id=execution_id, page_size=1000)).runs
    return {(run.node, run.iteration): run for run in runs}


def _unless_equal(node: str, what: str, one: str, other: str) -> Iterator[Difference]:
    if one != other:
        yield Difference(node, what, one, other)


def _json(message: Any, name: str) -> str:
    return render.compact(getattr(message, name)) if message.HasField(name) else ""


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 1]}…"
