"""Temporal, a server in Go on a PostgreSQL with our settings, with a Python worker in the client's process.

The server is tuned: limits.yaml lists what differs from its defaults.
"""

import asyncio
import os
from pathlib import Path
from string import Template
from typing import Any

from benchmarks.peers.environment import end_of, figures, home, make_environment, running, scratch, sources
from benchmarks.peers.temporal.build import build_server
from deploy.local.postgres import SUPERUSER, PostgresServer
from tests.support.postgres import free_port, own_server

NAME = "temporal"
SERVICES = ("frontend", "history", "matching", "worker")
MAKE_SCHEMA = (
    ("create-database",),
    ("setup-schema", "-v", "0.0"),
    ("update-schema", "--schema-name", "postgresql/v12/temporal"),
)


def install() -> None:
    make_environment(NAME)
    build_server(home(NAME))


async def run_round() -> dict[str, Any]:
    async with own_server() as database:
        with scratch() as place:
            return await measured(place, database)


async def measured(place: Path, database: PostgresServer) -> dict[str, Any]:
    log = place / "log"
    for step in MAKE_SCHEMA:
        async with running(str(home(NAME) / "sql"), *step, log=log, variables=login(database)) as tool:
            if await asyncio.wait_for(tool.wait(), 60) != 0:
                raise RuntimeError(f"{step} ended with {tool.returncode}:\n{end_of(log)}")
    ports = {service: free_port() for service in SERVICES}
    configuration = place / "server.yaml"
    configuration.write_text(filled_in(ports, database))
    server = [str(home(NAME) / "server"), "--allow-no-auth", "--config-file", str(configuration), "start"]
    async with running(*server, log=log, folder=place) as engine:
        address = f"127.0.0.1:{ports['frontend']}"
        return await figures(NAME, address, str(engine.pid), str(database.pid), log=log)


def login(database: PostgresServer) -> dict[str, str]:
    """The environment of the tool that makes the schema."""
    place = {"SQL_HOST": "127.0.0.1", "SQL_PORT": str(database.port), "SQL_PLUGIN": "postgres12"}
    return {**os.environ, **place, "SQL_USER": SUPERUSER, "SQL_PASSWORD": database.password}


def filled_in(ports: dict[str, int], database: PostgresServer) -> str:
    """The configuration file of the server."""
    return Template((sources(NAME) / "server.yaml").read_text()).substitute(
        ports,
        **{f"{service}_membership": free_port() for service in ports},
        database_port=database.port,
        database_user=SUPERUSER,
        database_password=database.password,
        limits=sources(NAME) / "limits.yaml",
    )
