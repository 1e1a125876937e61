"""Windlass runs on any PostgreSQL from 15: roles, schemas and every migration, twice over, and executions on them.

The operator may be no superuser, as with managed servers.
"""

import asyncio
import importlib.util
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from deploy.local import binaries, provision
from deploy.local.launch import tell
from tests.chaos.verify import verify
from tests.support.api import Client
from tests.support.postgres import PASSWORDS, free_port, make_operator, reachable_directory
from tests.support.probe import eventually, some
from tests.support.stack import running_stack
from windlass.api.v1 import resources_pb2

PASSWORD = "of-somebody-else"
READY_SECONDS = 30.0


def installations() -> dict[str, Path]:
    """Servers of other versions: one is beside ours in the wheel, and one is where Debian keeps its own."""
    wheel = some(importlib.util.find_spec(binaries.WHEEL_PACKAGE))
    assert wheel.submodule_search_locations
    return {"16": Path(wheel.submodule_search_locations[0]) / "pginstall/bin", "15": Path("/usr/lib/postgresql/15/bin")}


@pytest_asyncio.fixture(loop_scope="session", params=sorted(installations()))
async def superuser_url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    programs, account = installations()[request.param], binaries.unprivileged_account()
    if not (programs / "postgres").exists() or not binaries.can_reach(account, programs / "postgres"):
        pytest.skip(reason=f"no PostgreSQL {request.param} in reach")
    home, port = reachable_directory("windlass-other-"), free_port()
    (home / "password").write_text(PASSWORD)
    if account is not None:
        os.chown(home, account.pw_uid, account.pw_gid)
    user = None if account is None else account.pw_uid
    options = ["--auth=scram-sha-256", f"--pwfile={home}/password", "--username=dba", "--encoding=UTF8", "--locale=C"]
    made = await asyncio.create_subprocess_exec(
        *(str(programs / "initdb"), "-D", str(home / "data"), *options), user=user, stdout=asyncio.subprocess.DEVNULL
    )
    assert await made.wait() == 0
    settings = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={home}"]
    line = [str(programs / "postgres"), "-D", str(home / "data"), "-p", str(port), *settings]
    server = await asyncio.create_subprocess_exec(*line, user=user, stderr=asyncio.subprocess.DEVNULL)
    url = f"postgresql://dba:{PASSWORD}@127.0.0.1:{port}/postgres"
    try:
        await eventually(lambda: answers(url), READY_SECONDS, "the server to answer")
        yield url
    finally:
        tell(server.pid, signal.SIGINT)
        await server.wait()
        shutil.rmtree(home, ignore_errors=True)


async def answers(url: str) -> bool:
    try:
        await (await psycopg.AsyncConnection.connect(url)).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.parametrize("who", ["superuser", "operator"])
async def test_older_server_is_prepared_whole_and_again(superuser_url: str, who: str) -> None:
    own_url = superuser_url if who == "superuser" else await make_operator(superuser_url)
    urls = {service: provision.service_url(own_url, service, PASSWORDS[service]) for service in provision.OWNERS}
    for _ in range(2):
        await provision.provision(own_url, PASSWORDS)
        await provision.migrate(urls)
    for service, url in urls.items():
        async with await psycopg.AsyncConnection.connect(url) as connection:
            found = await connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = %s", (service,))
            row = await found.fetchone()
        assert row is not None
        assert row[0] > 1


@pytest.mark.long
async def test_executions_are_carried_on_an_older_server_of_an_operator_without_superuser(
    superuser_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDLASS_DATABASE_URL", await make_operator(superuser_url))
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
