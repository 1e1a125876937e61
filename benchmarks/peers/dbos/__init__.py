"""DBOS, a library on PostgreSQL. It runs in the client's process, on a PostgreSQL server with our settings."""

from typing import Any

from benchmarks.peers.environment import figures, make_environment, scratch
from tests.support.postgres import own_server


def install() -> None:
    make_environment("dbos")


async def run_round() -> dict[str, Any]:
    async with own_server() as server:
        with scratch() as place:
            url = server.url().replace("postgresql://", "postgresql+psycopg://")
            return await figures("dbos", url, str(server.pid), log=place / "log")
