"""Restate, a server in Rust with a store of its own, and services in Python that it calls.

Three processes: the server, the service under hypercorn as the SDK's documentation serves it, the client. The server
has its defaults (24 partitions, one node, the log's WAL with fsync); changed is only that all of it stays on loopback.
"""

from typing import Any

from benchmarks.peers.environment import figures, home, make_environment, python, running, scratch, sources
from benchmarks.peers.restate.download import fetch_server, server_in
from tests.support.postgres import free_port

NAME = "restate"


def install() -> None:
    make_environment(NAME)
    fetch_server(home(NAME))


async def run_round() -> dict[str, Any]:
    address = f"127.0.0.1:{free_port()}"
    ingress, admin = free_port(), free_port()
    hypercorn = [
        python(NAME),
        "-m",
        "hypercorn",
        "--config",
        "hypercorn.toml",
        "--bind",
        address,
        "service:app",
    ]
    with scratch() as place:
        server = [str(server_in(home(NAME))), "--no-logo", "--base-dir", str(place / "data")]
        log = place / "log"
        async with (
            running(*server, log=log, folder=place, variables=settings(ingress, admin)) as engine,
            running(*hypercorn, log=log, folder=sources(NAME)) as service,
        ):
            pids = (str(engine.pid), str(service.pid))
            ports = (f"http://127.0.0.1:{ingress}", f"http://127.0.0.1:{admin}", f"http://{address}")
            return await figures(NAME, *ports, *pids, log=log)


def settings(ingress: int, admin: int) -> dict[str, str]:
    """The whole environment of the server: a proxy of ours must not stand between it and the service."""
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
