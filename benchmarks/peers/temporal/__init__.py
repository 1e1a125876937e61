"""Temporal, a server in Go on a PostgreSQL with our settings, with a Python worker in the client's process.

The server is tuned: limits.yaml lists what differs from its defaults. It and the tool that makes its schemas are built
with Go and the module proxy. The hash of the module is pinned here, and its go.sum pins all its dependencies, so no
checksum database is needed. The first build takes 10 to 20 minutes of CPU, at the lowest priority.
"""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from string import Template
from typing import Any

from benchmarks.peers.environment import end_of, figures, home, make_environment, running, scratch, sources
from deploy.local.postgres import SUPERUSER, PostgresServer
from tests.support.postgres import free_port, own_server

NAME = "temporal"
MODULE = "go.temporal.io/server@v1.32.1"
SUM = "h1:grI5B5cBEMRJnDzGKtsxQRQpsNPisej1B6WgVksc9EM="
PROGRAMS = {"server": "./cmd/server", "sql": "./cmd/tools/sql"}
SERVICES = ("frontend", "history", "matching", "worker")
MAKE_SCHEMA = (
    ("create-database",),
    ("setup-schema", "-v", "0.0"),
    ("update-schema", "--schema-name", "postgresql/v12/temporal"),
)


def install() -> None:
    make_environment(NAME)
    build_server(home(NAME))


def build_server(place: Path) -> None:
    """Build the programs, unless they are there. Raises OSError or CalledProcessError when this machine cannot."""
    stamp = place / MODULE.replace("/", "_")
    if stamp.exists():
        return
    environment = {**os.environ, "GOSUMDB": "off"}
    download = ["go", "mod", "download", "-json", MODULE]
    answer = subprocess.run(download, check=True, stdout=subprocess.PIPE, env=environment).stdout
    found = json.loads(answer)
    if found["Sum"] != SUM:
        raise OSError(f"{MODULE} is not the module that is pinned: {found['Sum']}")
    build = ["nice", "-n", "19", "go", "build", "-o", f"{place}/", *PROGRAMS.values()]
    subprocess.run(build, check=True, cwd=found["Dir"], env=environment)
    stamp.touch()


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
