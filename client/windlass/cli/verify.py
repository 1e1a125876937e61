"""`windlass admin verify`: finds the database and prints the verdict, or one line that says why there is none."""

import asyncio
from functools import partial
from pathlib import Path

import psycopg

from deploy.audit.auditor import report
from deploy.local.home import Home
from deploy.local.provision import DATABASE, with_database
from services.chassis.telemetry.logs import setup_logging
from windlass.cli.invocation import as_typed
from windlass.cli.output import say, visible_json

FAILED = 1
_say = partial(say, err=True)


def verify(root: Path, url: str | None) -> int:
    """Verify the database at `url`, or that of the home's stack."""
    setup_logging(service="verify", level="WARNING")  # a person reads what is said, not the log
    home = Home(root)
    try:
        found = url or _of_stack(home)
    except (FileNotFoundError, NotADirectoryError):
        start = as_typed("windlass up", root)
        _say(f"no stack runs in {home.root}; start one with: {start}, or give --database-url")
        return FAILED
    except OSError as error:
        _say(f"cannot read {error.filename}: {error.strerror}")
        return FAILED
    try:
        return asyncio.run(report(with_database(found, DATABASE), lambda line: say(visible_json(line))))
    except (psycopg.Error, OSError) as error:
        _say(f"the database cannot be verified: {explain(error)}")
        return FAILED


def _of_stack(home: Home) -> str:
    """The operator's address of the stack that runs in the home. A killed stack leaves its file behind."""
    if not home.holder():
        raise FileNotFoundError
    return home.operator_url_file.read_text().strip()


def explain(error: Exception) -> str:
    """The error in one line. For a refused statement: the message of the server, without the statement."""
    said = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    words = " ".join((said or str(error)).split())
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName):
        return f"{words}; windlass migrate makes what is missing"
    return words
