"""Restate, a server in Rust with its own store, which calls services in Python.

There are four processes: the server, two copies of the service under hypercorn, as the SDK's documentation serves it,
and the client, which tries whether one copy or both are faster. The server has its defaults (24 partitions, one node,
the log's WAL with fsync), but listens on loopback only.
"""

import os
from asyncio.subprocess import Process
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from benchmarks.peers.environment import figures, home, make_environment, python, running, scratch, sources
from benchmarks.peers.restate.download import fetch_server, server_in
from tests.support.postgres import free_port

NAME = "restate"


def install() -> None:
    make_environment(NAME)
    fetch_server(home(NAME))


async def run_round() -> dict[str, Any]:
    ingress, admin, *services = (free_port() for _ in range(4))
    with scratch() as place:
        server = [str(server_in(home(NAME))), "--no-logo", "--base-dir", str(place / "data")]
        log = place / "log"
        async with (
            running(*server, log=log, folder=place, variables=settings(ingress, admin)) as engine,
            served("bench0", services[0], log) as first,
            served("bench1", services[1], log) as second,
        ):
            pids = [str(process.pid) for process in (engine, first, second)]
            addresses = [f"http://127.0.0.1:{port}" for port in (ingress, admin, *services)]
            return await figures(NAME, *addresses, *pids, log=log)


def served(name: str, port: int, log: Path) -> AbstractAsyncContextManager[Process]:
    """A copy of the service under this name."""
    hypercorn = [python(NAME), "-m", "hypercorn", "--config", "hypercorn.toml"]
    variables = {**os.environ, "BENCH_SERVICE": name}
    bound = ["--bind", f"127.0.0.1:{port}", "service:app"]
    return running(*hypercorn, *bound, log=log, folder=sources(NAME), variables=variables)


def settings(ingress: int, admin: int) -> dict[str, str]:
    """The whole environment of the server. Ours is not passed on, or a proxy could come between it and the service."""
    return {
        "RESTATE_BIND_IP": "127.0.0.1",
        "RESTATE_ADVERTISED_HOST": "127.0.0.1",
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_BIND_PORT": str(free_port()),
        "RESTATE_INGRESS__BIND_PORT": str(ingress),
        "RESTATE_ADMIN__BIND_PORT": str(admin),
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LOG_DISABLE_ANSI_CODES": "true",
    }
