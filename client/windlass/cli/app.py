"""All commands in one tree. Exit codes: 0 done, 1 failed, 2 usage."""

import os
import sys
from typing import Annotated

import typer

from windlass.cli import (
    access,
    approvals,
    bulk_jobs,
    circuits,
    comparing,
    contexts,
    dead_letters,
    events,
    executions,
    exporting,
    people,
    runs,
    stack,
    starting,
    workflows,
)
from windlass.cli.conformance import conformance
from windlass.cli.output import say

app = typer.Typer(
    name="windlass",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        say(version("windlass"))
        raise typer.Exit


@app.callback()
def windlass(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Windlass, a durable workflow engine: no finished node is lost or done again."""


stack.register(app)
app.add_typer(workflows.app, name="workflow")
workflows.register(app)
starting.register(app)
executions.register(app)
events.register(app)
runs.register(app)
app.add_typer(circuits.app, name="circuits")
app.add_typer(approvals.approvals, name="approvals")
people.register(app)
app.add_typer(bulk_jobs.jobs, name="jobs")
comparing.register(app)
exporting.register(app)
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(access.keys, name="keys")
app.add_typer(access.workspaces, name="workspace")
app.add_typer(contexts.app, name="context")
app.add_typer(stack.admin, name="admin")
app.command()(conformance)

FAILED, USAGE, INTERRUPTED = 1, 2, 130
# Every installation has these packages. If one is missing, that is our bug, and the traceback is shown.
OURS = {"windlass", "services", "deploy"}


def run(tree: typer.Typer) -> int:
    """The exit code: 0 done, 1 failed, 2 usage."""
    try:
        tree(standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # a file that the person named cannot be used, or the disk is full
        cannot = f"cannot use {error.filename}" if error.filename else "cannot go on"
        say(f"{cannot}: {error.strerror or error}", err=True)
        _forget_unwritten()
        return FAILED
    except UnicodeError as error:
        # Whatever is sent or written to a file is UTF-8. Only a terminal may have another encoding.
        if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":
            say(f"the terminal cannot show this text, because its encoding is {error.encoding};", err=True)
            say("set PYTHONIOENCODING=utf-8, or LANG to a locale with UTF-8", err=True)
            return FAILED
        say("an argument, or a line of the standard input, is not text in UTF-8", err=True)
        return USAGE
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] in OURS:
            raise
        sys.stderr.write(f"{missing.name} is not installed; this command needs windlass[local]\n")
        return FAILED
    return 0


def _forget_unwritten() -> None:
    """Python writes once more at its end what a full disk has not taken, and would add an error of its own to ours."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
