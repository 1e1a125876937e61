"""Commands for many things at once: ids on the command line or on standard input, or all that a filter finds.

One thing that is refused does not keep the command from the others. The exit code is then 1.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from windlass.cli.connection import reason_of
from windlass.cli.output import say, visible

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Name what would be changed, and change nothing.")]


def is_by_filter(ids: Sequence[str] | None, filter_text: str) -> bool:
    """Whether the caller has chosen by a filter, and not by ids."""
    if filter_text and ids:
        raise typer.BadParameter("give ids or --filter, not both")
    if not filter_text and not ids:
        raise typer.BadParameter("give the ids, - to read them from the standard input, or --filter")
    return bool(filter_text)


def do_for_each(
    given: Sequence[str], do: Callable[[str], Any], show: Callable[[Any], Any], *, is_dry_run: bool
) -> None:
    """`show` prints the answer of `do` for one of them."""
    ids = [line.strip() for line in sys.stdin if line.strip()] if list(given) == ["-"] else given
    "".join(ids).encode()  # raises if one is no text, before anything is sent
    if not ids:
        say("there is nothing to do: no id was given, or nothing matches", err=True)
    if is_dry_run:
        for each in ids:
            say(each)
        return
    if len(ids) == 1:
        show(do(ids[0]))
        return
    failures = 0
    for each in ids:
        failures += not _done(each, do, show)
    if failures:
        raise typer.Exit(1)


def _done(subject: str, do: Callable[[str], Any], show: Callable[[Any], Any]) -> bool:
    import grpc
    from grpc_status import rpc_status

    try:
        show(do(subject))
    except grpc.RpcError as error:
        # What a call raises is the call itself, and has the message of the answer.
        said: Any = error
        reason = reason_of(rpc_status.from_call(said)) or said.code().name
        say(visible(f"{subject}: {said.details()} ({reason})"), err=True)
        return False
    return True
