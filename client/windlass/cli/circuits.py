"""`windlass circuits …`: the circuit breakers of targets. docs/circuits.md says when to use which."""

import time
from typing import Annotated, Any, Literal

import typer

from windlass.cli import messages, render
from windlass.cli.arguments import micros_of
from windlass.cli.connection import Api, command
from windlass.cli.output import say

app = typer.Typer(help="List, reset and open circuit breakers of targets.", no_args_is_help=True, rich_markup_mode=None)

TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="As the list shows it, like 'http.request@1 api.example.com:443'.")
]
StateName = Literal["CLOSED", "OPEN", "HALF_OPEN"]
COLUMNS: render.Columns = {
    "target": "target",
    "state": "state",
    "failed": "failure_count",
    "answered": "success_count",
    "waiting": "waiting",
    "opened": "open_time",
    "probed from": "next_retry_time",
}


def _show(circuit: Any) -> None:
    render.table([circuit], COLUMNS)


@command(app, "list", shows=render.listing("circuits", COLUMNS))
def list_circuits(
    api: Api,
    state: Annotated[StateName | None, typer.Option(help="Only circuits in this state.")] = None,
    prefix: Annotated[str, typer.Option(help="Only targets that begin with this, like a module.")] = "",
) -> Any:
    """List the targets that have failed lately, and what waits for them.

    \b
    Examples:
      windlass circuits list --state OPEN --prefix 'http.request@1 '
    """
    request = messages.ListCircuitsRequest(target_prefix=prefix, page_size=1000)
    if state is not None:
        request.state = messages.Circuit.State.Value(state)
    return api.whole(request)


@command(app, "get", shows=_show)
def get_circuit(api: Api, target: TargetArgument) -> Any:
    """Show one circuit."""
    return api.call(messages.GetCircuitRequest(target=target)).circuit


@command(app, "reset", shows=_show)
def reset_circuit(api: Api, target: TargetArgument) -> Any:
    """Close a circuit at once. Work that waits for it goes on in waves."""
    return api.call(messages.ResetCircuitRequest(target=target)).circuit


@command(app, "open", shows=_show)
def open_circuit(
    api: Api,
    target: TargetArgument,
    lasting: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long, like 90s, 30m or 2h.")],
) -> Any:
    """Open a circuit by hand, for instance while a target is serviced. Then it is probed.

    \b
    Examples:
      windlass circuits open 'http.request@1 api.example.com:443' --for 30m
    """
    request = messages.OpenCircuitRequest(target=target)
    request.until.FromMicroseconds(time.time_ns() // 1_000 + micros_of(lasting, "--for"))
    answer = api.call(request)
    say(f"no call of {target} is made until {render.date(answer.circuit.next_retry_time)}", err=True)
    return answer.circuit
