"""The stack on a PostgreSQL of somebody else's, as old as is promised: --database-url runs on any from 15."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from deploy.local.binaries import unprivileged_account
from tests.chaos.verify import verify
from tests.support.api import Client
from tests.support.postgres import free_port, reachable_directory
from tests.support.probe import eventually
from tests.support.stack import running_stack
from windlass.api.v1 import resources_pb2

OLDEST = 15
# Where Debian and its like put them, one folder for each version.
INSTALLED = Path("/usr/lib/postgresql")


def versions_here() -> list[str]:
    found = [each.parent.parent.name for each in INSTALLED.glob("*/bin/postgres")]
    return [version for version in sorted(found) if version.isdigit() and int(version) >= OLDEST]


@contextlib.asynccontextmanager
async def server_of(version: str) -> AsyncIterator[str]:
    """One with a password and nothing else of ours; its superuser's address."""
    programs, place, port = INSTALLED / version / "bin", reachable_directory("windlass-foreign-"), free_port()
    account = unprivileged_account()
    password, data = place / "password", place / "data"
    password.write_text("foreign")
    data.mkdir()
    owner: dict[str, Any] = {} if account is None else {"user": account.uid, "group": account.gid}
    if account is not None:
        for path in (password, data):
            os.chown(path, account.uid, account.gid)
    initdb = [str(programs / "initdb"), "-D", str(data), "-U", "boss", "-A", "scram-sha-256"]
    made = await asyncio.create_subprocess_exec(
        *initdb, f"--pwfile={password}", stdout=asyncio.subprocess.DEVNULL, cwd="/", extra_groups=[], **owner
    )
    assert await made.wait() == 0
    settings = ("listen_addresses=127.0.0.1", f"port={port}", "unix_socket_directories=")
    command = [
        str(programs / "postgres"),
        "-D",
        str(data),
        *(part for each in settings for part in ("-c", each)),
    ]
    with (place / "log").open("wb") as log:
        server = await asyncio.create_subprocess_exec(
            *command, stdout=log, stderr=log, cwd="/", extra_groups=[], **owner
        )
    url = f"postgresql://boss:foreign@127.0.0.1:{port}/postgres"

    async def answers() -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            await (await psycopg.AsyncConnection.connect(url)).close()
            return True
        return False

    try:
        await eventually(answers, 30, f"PostgreSQL {version} to answer")
        yield url
    finally:
        server.send_signal(signal.SIGINT)
        await server.wait()
        shutil.rmtree(place, ignore_errors=True)


@pytest.mark.long
@pytest.mark.parametrize("version", versions_here() or ["none"])
async def test_executions_are_carried_on_another_postgresql(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version == "none":
        pytest.skip(f"there is no PostgreSQL from {OLDEST} on under {INSTALLED}")
    async with server_of(version) as url:
        monkeypatch.setenv("WINDLASS_DATABASE_URL", url)
        async with running_stack(coordinators=2) as stack:
            client = Client(stack)
            nodes: list[dict[str, Any]] = [
                {"id": "a", "module": "transform@1", "inputs": {"n": "{{ input.n }}"}},
                {"id": "b", "module": "join@1"},
            ]
            await client.apply("row", nodes, edges=[{"from": "a", "to": "b"}])
            for number in range(20):
                execution = await client.run("row", input={"n": number})
                assert execution.state == resources_pb2.Execution.SUCCESS, execution.error
            await verify(stack, {"S1", "S6", "S7"})
