"""A real PostgreSQL for the tests: one server per session, a fresh database per module in some tens of
milliseconds.

    async def test_x(postgres: PostgresCluster) -> None:
        database = await postgres.database()          # empty schemas, roles in place
        database = await postgres.database(migrated=True)   # as after `windlass migrate`
        database.url("dispatcher"), database.superuser_url

Hazards: the roles belong to the server, so they are shared by all databases of the session. The server is the
product's own (deploy.local.postgres, same settings, fsync on) and dies with the test process.
"""

import itertools
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest_asyncio
from psycopg import sql

from deploy.local import provision
from deploy.local.postgres import PostgresServer

PASSWORDS = {service: f"{service}-password" for service in provision.OWNERS}
EMPTY_TEMPLATE = "template_empty"
MIGRATED_TEMPLATE = "template_migrated"
# The processes of one test run (pytest-xdist) never choose the same port, because another process could take a port
# between the check that it is free and listening on it.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
# A stack uses the ports below 60 of each hundred (deploy/local/plan.py), so these are never one of its own.
PORTS = [port for port in range(18_000, 30_000) if port % 100 >= 60][WORKER::WORKERS]
# Several test runs may go on at once, so each walks the range from another place.
_candidates = itertools.islice(itertools.cycle(PORTS), os.getpid() * 97 % len(PORTS), None)


def free_port() -> int:
    """A port that was free a moment ago. It stays so, because the kernel hands only higher ones to clients."""
    for _ in range(2000):
        port = next(_candidates)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(port)
    raise RuntimeError("no free port")


def reachable_directory(prefix: str) -> Path:
    """A temporary directory that an unprivileged server can reach (pytest's own are closed to others)."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    directory.chmod(0o711)
    return directory


async def make_operator(superuser_url: str, name: str = "operator") -> str:
    """The address of a new user as managed servers give one, with CREATEROLE and CREATEDB, and no superuser."""
    password = "of-the-operator"
    async with await psycopg.AsyncConnection.connect(superuser_url, autocommit=True) as connection:
        await connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN CREATEROLE CREATEDB PASSWORD {}").format(
                sql.Identifier(name), sql.Literal(password)
            )
        )
    parts = urlsplit(superuser_url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{name}:{password}@{host}"))


@dataclass(frozen=True)
class Database:
    name: str
    superuser_url: str

    def url(self, service: str) -> str:
        return provision.service_url(self.superuser_url, service, PASSWORDS[service], self.name)


class PostgresCluster:
    """The session's server and the databases made on it."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self._numbers = itertools.count(1)
        self._templates: set[str] = set()

    async def database(self, *, migrated: bool = False) -> Database:
        template = MIGRATED_TEMPLATE if migrated else EMPTY_TEMPLATE
        if template not in self._templates:
            await self._make_template(template, migrated=migrated)
        name = f"test_{next(self._numbers)}"
        async with await psycopg.AsyncConnection.connect(self.server.url(), autocommit=True) as connection:
            await connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
            )
        database = Database(name, self.server.url(name))
        # Rights on a database and settings per database are not part of the template.
        await provision.provision(self.server.url(), PASSWORDS, name)
        return database

    async def drop(self, database: Database) -> None:
        async with await psycopg.AsyncConnection.connect(self.server.url(), autocommit=True) as connection:
            await connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(database.name)))

    async def _make_template(self, template: str, *, migrated: bool) -> None:
        await provision.provision(self.server.url(), PASSWORDS, template)
        if migrated:
            made = Database(template, self.server.url(template))
            await provision.migrate({service: made.url(service) for service in provision.OWNERS})
        self._templates.add(template)


@asynccontextmanager
async def own_server() -> AsyncIterator[PostgresServer]:
    """A server that may be stopped and changed, because no other test uses it. It is removed afterwards."""
    directory = reachable_directory("windlass-tests-")
    server = PostgresServer(
        directory / "postgres",
        port=free_port(),
        log=directory / "postgres.log",
        password_file=directory / "postgres.password",
    )
    try:
        await server.start()
        yield server
    finally:
        await server.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres() -> AsyncIterator[PostgresCluster]:
    async with own_server() as server:
        yield PostgresCluster(server)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def database(postgres: PostgresCluster) -> AsyncIterator[Database]:
    """A migrated database for the module alone. It is removed afterwards."""
    made = await postgres.database(migrated=True)
    yield made
    await postgres.drop(made)
