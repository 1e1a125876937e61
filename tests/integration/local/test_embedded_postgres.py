"""The embedded server keeps its promises: durable settings, no open access, and no life beyond its supervisor's."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import psycopg
import pytest
import pytest_asyncio

from deploy.local import binaries, provision
from deploy.local.postgres import PostgresServer
from tests.support.postgres import PASSWORDS, Database, PostgresCluster, free_port, reachable_directory

SUPERVISE = """
import asyncio, sys
from pathlib import Path
from deploy.local.postgres import PostgresServer
async def main():
    home, port = Path(sys.argv[1]), int(sys.argv[2])
    server = PostgresServer(home / "postgres", port=port, log=home / "log", password_file=home / "password")
    await server.start()
    print(server.pid, flush=True)
    await server.wait()
asyncio.run(main())
"""


@pytest_asyncio.fixture(loop_scope="session")
async def home() -> AsyncIterator[Path]:
    directory = reachable_directory("windlass-postgres-")
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def server_in(home: Path, port: int) -> PostgresServer:
    return PostgresServer(home / "postgres", port=port, log=home / "log", password_file=home / "password")


async def test_settings_are_those_of_production(postgres: PostgresCluster) -> None:
    async with await psycopg.AsyncConnection.connect(postgres.server.url()) as connection:
        for name, value in {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "jit": "off"}.items():
            row = await (await connection.execute("SELECT current_setting(%s)", (name,))).fetchone()
            assert row == (value,), name


async def test_server_of_root_runs_unprivileged(postgres: PostgresCluster) -> None:
    assert postgres.server.pid is not None
    assert psutil.Process(postgres.server.pid).uids().effective != 0
    assert all(link.laddr.ip == "127.0.0.1" for link in psutil.Process(postgres.server.pid).net_connections())
    assert postgres.server.data.stat().st_mode & 0o077 == 0


async def test_password_is_needed(postgres: PostgresCluster) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        await psycopg.AsyncConnection.connect(postgres.server.url().replace(postgres.server.password, "guess"))


@pytest.mark.parametrize("service", provision.OWNERS)
async def test_role_is_denied_the_schemas_of_others(postgres: PostgresCluster, service: str) -> None:
    database = await postgres.database()
    for owner in provision.OWNERS:
        async with await psycopg.AsyncConnection.connect(database.url(owner)) as connection:
            await connection.execute("CREATE TABLE secrets (value text)")  # search_path puts it into the owner's schema
    async with await psycopg.AsyncConnection.connect(database.url(service), autocommit=True) as connection:
        await connection.execute("SELECT * FROM secrets")
        for owner in set(provision.OWNERS) - {service}:
            for attempt in ("SELECT * FROM {}.secrets", "CREATE TABLE {}.mine ()", "DROP SCHEMA {} CASCADE"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    await connection.execute(attempt.format(owner))
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await connection.execute(f"SET ROLE {provision.role_of(owner)}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await connection.execute("CREATE TABLE public.mine ()")
    await postgres.drop(database)


async def test_committed_row_survives_the_kill_of_server_and_supervisor(home: Path) -> None:
    port = free_port()
    supervisor = await _supervised(home, port)
    postmaster = int(await _line(supervisor))
    server = server_in(home, port)
    async with await psycopg.AsyncConnection.connect(server.url(), autocommit=True) as connection:
        await connection.execute("CREATE TABLE kept (value int)")
        await connection.execute("INSERT INTO kept VALUES (1)")
        for process in (supervisor.pid, postmaster, *(child.pid for child in psutil.Process(postmaster).children())):
            # A child may have ended by itself when its server died.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    await supervisor.wait()

    # The old pid now belongs to another live process, so a plain start would refuse.
    lock_file = server.data / "postmaster.pid"
    lines = lock_file.read_text().split("\n")
    lock_file.write_text("\n".join(["1", *lines[1:]]))
    await server.start()
    try:
        async with await psycopg.AsyncConnection.connect(server.url()) as connection:
            assert await (await connection.execute("SELECT value FROM kept")).fetchall() == [(1,)]
    finally:
        await server.stop()


async def test_server_dies_cleanly_with_its_supervisor(home: Path) -> None:
    port = free_port()
    supervisor = await _supervised(home, port)
    postmaster = psutil.Process(int(await _line(supervisor)))
    supervisor.kill()
    await supervisor.wait()
    again = PostgresServer(home / "postgres", port=port, log=home / "log2", password_file=home / "password")
    await again.start()  # this waits for the old one, which the kernel told to end
    try:
        assert not postmaster.is_running() or postmaster.status() == psutil.STATUS_ZOMBIE
        assert "automatic recovery" not in (home / "log2").read_text()
    finally:
        await again.stop()


async def test_unfinished_initialisation_is_begun_again(home: Path) -> None:
    (home / "postgres.new").mkdir()
    (home / "postgres.new" / "PG_VERSION").write_text("18")
    server = server_in(home, free_port())
    await server.start()
    await server.stop()
    assert (server.data / "PG_VERSION").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the server to somebody else")
async def test_data_and_programs_move_where_the_unprivileged_owner_can_reach(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o700)
    reach = binaries.can_reach
    monkeypatch.setattr(binaries, "REACHABLE_ROOT", home / "lib")
    monkeypatch.setattr(binaries, "can_reach", lambda who, path: "site-packages" not in path.parts and reach(who, path))
    said: list[str] = []
    server = PostgresServer(
        closed / "postgres", port=free_port(), log=home / "log", password_file=home / "password", report=said.append
    )
    await server.start()
    try:
        assert server.pid is not None
        assert psutil.Process(server.pid).exe().startswith(str(home / "lib"))
        assert server.data.parent == home / "lib"
        assert any(str(server.data) in line for line in said)
        assert closed.stat().st_mode & 0o077 == 0  # nobody's directory was opened for it
    finally:
        await server.stop()


async def test_provisioning_may_be_repeated_and_changes_passwords(postgres: PostgresCluster) -> None:
    database = await postgres.database()
    await provision.provision(postgres.server.url(), PASSWORDS, database.name)
    async with await psycopg.AsyncConnection.connect(Database(database.name, postgres.server.url()).url("api")) as link:
        assert await (await link.execute("SELECT current_schema()")).fetchone() == ("api",)
    await postgres.drop(database)


async def _supervised(home: Path, port: int) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SUPERVISE, str(home), str(port)), stdout=asyncio.subprocess.PIPE
    )


async def _line(process: Process) -> bytes:
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line, "the supervisor ended before it was ready"
    return line
