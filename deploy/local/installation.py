"""Prepares a database for Windlass: `up` does this before it starts anything, `migrate` and `bootstrap` do it alone.

Hazard: the passwords of the service roles are made here and kept in the home. The services read their addresses from
<home>/credentials/<service>.url (WINDLASS_DATABASE_URL_FILE).
"""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psycopg

from deploy.local import provision
from deploy.local.files import write_private
from deploy.local.home import KEYS, MIGRATING, Home, HomeTaken
from deploy.local.postgres import Say
from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.identity.system_key import hash_of
from services.chassis.postgres.migrations import SchemaMismatch
from services.chassis.telemetry.logs import setup_logging

CONNECT_SECONDS = 10
# Errors that are no bug: a person sees their text and no traceback.
EXPECTED_ERRORS = (HomeTaken, provision.TooOld, SchemaMismatch, DependencyUnavailable, psycopg.Error, OSError)


async def prepare(home: Home, superuser_url: str) -> list[str]:
    """Make roles, database and schemas, and in the home the addresses.

    Returns the names of the migrations that were applied."""
    passwords = {service: home.password(service) for service in provision.OWNERS}
    await provision.provision(superuser_url, passwords)
    urls = {service: provision.service_url(superuser_url, service, password) for service, password in passwords.items()}
    for service, url in urls.items():
        write_private(home.url_file(service), url)
    return await provision.migrate(urls)


async def ensure_keys(home: Home, superuser_url: str) -> bool:
    """Make the three keys, unless the home has those of this database. Returns whether they were made."""
    from services.api.store.bootstrap import bootstrap

    database = await _database_name(superuser_url)
    kept = home.database_file.read_text().strip() if home.database_file.exists() else None
    are_missing = kept != database or not all(home.key_file(name).exists() for name in KEYS)
    if are_missing:
        keys = await bootstrap(home.url_file("api").read_text().strip())
        for name in KEYS:
            write_private(home.key_file(name), getattr(keys, name))
    system_key = home.key_file("system").read_text(encoding="utf-8").strip()
    write_private(home.system_key_hash_file, hash_of(system_key))
    # This is last: a start that dies before it makes the keys again.
    write_private(home.database_file, database)
    return are_missing


def migrate(root: Path, superuser_url: str, say: Say) -> int:
    home = Home(root)

    async def work() -> None:
        for name in await prepare(home, superuser_url):
            say(f"applied {name}")
        say(f"the schemas are at their newest version; the services' addresses are in {home.credentials}")

    return _run(home, work(), say)


def bootstrap(root: Path, superuser_url: str, say: Say) -> int:
    home = Home(root)

    async def work() -> None:
        await prepare(home, superuser_url)
        made = await ensure_keys(home, superuser_url)
        files = ", ".join(str(home.key_file(name)) for name in KEYS)
        say(f"{'made' if made else 'there already'}: {files}")

    return _run(home, work(), say)


def _run(home: Home, work: Coroutine[Any, Any, None], say: Say) -> int:
    setup_logging(service="installation", level="WARNING")  # a person reads `say`, not the log
    try:
        home.take(MIGRATING)
        asyncio.run(work)
    except EXPECTED_ERRORS as error:
        work.close()
        say(in_words(error))
        return 1
    return 0


def in_words(error: BaseException) -> str:
    """An expected error without numbers of the system, and that of a database on one line."""
    if isinstance(error, OSError) and error.filename:
        return f"cannot use {error.filename}: {error.strerror}"
    return " ".join(str(error).split()) if isinstance(error, psycopg.Error) else str(error)


async def _database_name(superuser_url: str) -> str:
    """A name that no other database has, however it is reached."""
    async with await psycopg.AsyncConnection.connect(superuser_url, connect_timeout=CONNECT_SECONDS) as connection:
        found = await connection.execute("SELECT system_identifier::text FROM pg_control_system()")
        row = await found.fetchone()
    assert row is not None
    return f"{row[0]}/{provision.DATABASE}"
