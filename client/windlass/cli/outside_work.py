"""`windlass run complete|fail|heartbeat`: work that a module has left to somebody else, who has its token."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from windlass.cli import messages
from windlass.cli.arguments import json_object
from windlass.cli.connection import Api, Mistyped, command
from windlass.cli.output import say

TokenFileOption = Annotated[
    str,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="The file with the token; - reads it from standard input. Or set WINDLASS_TOKEN.",
    ),
]


def register(run: typer.Typer) -> None:
    command(run, "complete", shows=lambda answer: say(f"run {answer.run_id} is completed"))(complete_run)
    command(run, "fail", shows=lambda answer: say(f"run {answer.run_id} has failed"))(fail_run)
    command(run, "heartbeat", shows=lambda answer: say(f"run {answer.run_id} goes on"))(heartbeat_run)


def complete_run(
    api: Api,
    output: Annotated[
        str, typer.Option("--output", metavar="JSON", help="The output, a JSON object; @FILE reads it from a file.")
    ] = "{}",
    branch: Annotated[str, typer.Option(help="The branch that is taken.")] = "",
    token_file: TokenFileOption = "",
) -> Any:
    """The work is done. No key is needed beside the token.

    \b
    Examples:
      windlass run complete --token-file token --output '{"paid": true}'
    """
    values = json_object(output, "--output")
    request = messages.CompleteRunRequest(token=_token(token_file), output=values, branch=branch)
    return api.call(request, key="")


def fail_run(
    api: Api,
    type_: Annotated[str, typer.Option("--type", help="The type of the error, like CARD_DECLINED.")] = "",
    message: Annotated[str, typer.Option(help="For people.")] = "",
    retryable: Annotated[bool, typer.Option("--retryable", help="The node may try it again.")] = False,
    token_file: TokenFileOption = "",
) -> Any:
    """The work has failed. No key is needed beside the token.

    \b
    Examples:
      windlass run fail --token-file token --type CARD_DECLINED --message "no money"
    """
    token = _token(token_file)
    request = messages.FailRunRequest(token=token, type=type_, message=message, retryable=retryable)
    return api.call(request, key="")


def heartbeat_run(
    api: Api,
    progress: Annotated[float | None, typer.Option(help="From 0 to 1.", min=0, max=1)] = None,
    message: Annotated[str | None, typer.Option(help="For people.")] = None,
    token_file: TokenFileOption = "",
) -> Any:
    """Somebody is at work. No key is needed beside the token.

    \b
    Examples:
      windlass run heartbeat --token-file token --progress 0.5
    """
    request = messages.HeartbeatRunRequest(token=_token(token_file), progress=progress, message=message)
    return api.call(request, key="")


def _token(file: str) -> str:
    """It is never taken as an argument, because command lines are public."""
    if not file and (given := os.environ.get("WINDLASS_TOKEN")):
        return given
    if not file:
        raise Mistyped("no token is given; name its file with --token-file, or set WINDLASS_TOKEN")
    return (sys.stdin.read() if file == "-" else Path(file).read_text(errors="replace")).strip()
