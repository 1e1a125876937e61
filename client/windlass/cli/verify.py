"""`windlass admin verify`: find the database and print its verdict, or one line that says why there is none."""

import asyncio
from collections.abc import Callable

import psycopg

from deploy.audit.report import report
from deploy.local.home import Home
from deploy.local.provision import DATABASE, with_database
from services.chassis.telemetry.logs import setup_logging
from windlass.cli.invocation import as_typed

FAILED = 1
Say = Callable[[str], None]


def verify(home: Home, url: str | None, say: Say, tell: Say) -> int:
    """The lines of the verdict go to `tell`, other messages to `say`. Without `url` it reads the home's stack."""
    setup_logging(service="verify", level="WARNING")
    try:
        found = url or _of_stack(home)
    except (FileNotFoundError, NotADirectoryError):
        start = as_typed("windlass up", home.root)
        say(f"nothing runs on {home.root}; start it with: {start}, or give --database-url")
        return FAILED
    except OSError as error:
        say(f"cannot read {error.filename}: {error.strerror}")
        return FAILED
    try:
        return asyncio.run(report(with_database(found, DATABASE), tell))
    except (psycopg.Error, OSError) as error:
        say(f"the database cannot be verified: {explain(error)}")
        return FAILED


def _of_stack(home: Home) -> str:
    """The address is only valid while the stack runs: one that was killed leaves its file behind."""
    if not home.holder():
        raise FileNotFoundError
    return home.operator_url_file.read_text().strip()


def explain(error: Exception) -> str:
    """One line; for a refused statement the server's message without the statement."""
    said = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    words = " ".join((said or str(error)).split())
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName):
        return f"{words}; windlass migrate makes what is missing"
    return words
