"""DBOS, a library on PostgreSQL. It runs in the client's process, on a PostgreSQL server with our settings."""

from typing import Any

from benchmarks.peers.environment import figures, make_environment, scratch
from deploy.local.postgres import PostgresServer
from tests.support.postgres import free_port


def install() -> None:
    make_environment("dbos")


async def run_round() -> dict[str, Any]:
    with scratch() as place:
        server = PostgresServer(place / "data", port=free_port(), password_file=place / "password", log=place / "log")
        try:
            await server.start()
            url = server.url().replace("postgresql://", "postgresql+psycopg://")
            return await figures("dbos", url, str(server.pid), log=place / "workloads.log")
        finally:
            await server.stop()
