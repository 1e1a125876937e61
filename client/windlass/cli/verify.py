"""`windlass admin verify`: which database is meant, and its verdict; or one line about why there is none."""

import asyncio
from collections.abc import Callable

import psycopg

from deploy.audit.auditor import report
from deploy.local.home import Home
from deploy.local.provision import DATABASE, with_database
from services.chassis.telemetry.logs import setup_logging
from windlass.cli.invocation import as_typed

FAILED = 1
Say = Callable[[str], None]


def verify(home: Home, url: str | None, say: Say, tell: Say) -> int:
    """The verdict's lines go to `tell`, what a person needs to know to `say`. Without `url`: of the home's stack."""
    setup_logging(service="verify", level="WARNING")  # it speaks to a person, by `say`
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
    """Of one that was killed the address may still lie there."""
    if not home.holder():
        raise FileNotFoundError
    return home.operator_url_file.read_text().strip()


def explain(error: Exception) -> str:
    """In one line; of a refused statement what the server said of it, and not the statement."""
    said = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    words = " ".join((said or str(error)).split())
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName):
        return f"{words}; windlass migrate makes what is missing"
    return words
