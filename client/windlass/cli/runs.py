"""What a run was given to work on."""

from typing import Annotated, Any

import typer

from windlass.cli import messages, render
from windlass.cli.connection import Api, command


def register(app: typer.Typer) -> None:
    command(app, shows=render.print_json)(inputs)


def inputs(
    api: Api, run_id: Annotated[str, typer.Argument(metavar="RUN_ID", help="Its id, as `windlass runs` shows it.")]
) -> Any:
    """Show the inputs and config of a run, as rendered."""
    return api.call(messages.GetRunInputsRequest(run_id=run_id))
