"""`windlass migrate` and `windlass admin bootstrap` prepare somebody's own server, and may be repeated."""

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest_asyncio

from deploy.local.home import KEYS, Home
from deploy.local.postgres import PostgresServer
from deploy.local.provision import OWNERS
from tests.support.command_line import windlass
from tests.support.postgres import own_server


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server() -> AsyncIterator[PostgresServer]:
    async with own_server() as made:
        yield made


async def test_migrate_prepares_a_server_and_again_changes_nothing(server: PostgresServer, tmp_path: Path) -> None:
    first = windlass("migrate", "--home", tmp_path, WINDLASS_DATABASE_URL=server.url())
    assert first.returncode == 0, first.stderr
    for service in OWNERS:
        assert f"applied {service}/0001_initial.sql" in first.stderr
    again = windlass("migrate", "--home", tmp_path, WINDLASS_DATABASE_URL=server.url())
    assert again.returncode == 0
    assert "applied" not in again.stderr
    for service in OWNERS:
        url = Home(tmp_path).url_file(service).read_text().strip()
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await connection.execute(f"SELECT * FROM {service}.schema_version")


async def test_bootstrap_makes_keys_once(server: PostgresServer, tmp_path: Path) -> None:
    home = Home(tmp_path)
    made = windlass("admin", "bootstrap", "--home", tmp_path, WINDLASS_DATABASE_URL=server.url())
    assert made.returncode == 0, made.stderr
    keys = [home.key_file(name).read_text() for name in KEYS]
    assert all(home.key_file(name).stat().st_mode & 0o777 == 0o600 for name in KEYS)
    assert len(set(keys)) == len(KEYS)
    assert (
        "there already" in windlass("admin", "bootstrap", "--home", tmp_path, WINDLASS_DATABASE_URL=server.url()).stderr
    )
    assert [home.key_file(name).read_text() for name in KEYS] == keys
    home.key_file("admin").unlink()
    assert "made" in windlass("admin", "bootstrap", "--home", tmp_path, WINDLASS_DATABASE_URL=server.url()).stderr


async def test_server_that_is_away_is_reported_without_a_traceback(tmp_path: Path) -> None:
    away = windlass(
        "migrate", "--home", tmp_path, WINDLASS_DATABASE_URL="postgresql://nobody:secret-word@127.0.0.1:1/postgres"
    )
    assert away.returncode == 1
    assert "Traceback" not in away.stderr
    assert "secret-word" not in away.stderr
