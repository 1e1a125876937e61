"""Preparing a server as superuser and as operator, and the rights of its roles afterwards."""

import subprocess
import sys
from collections.abc import AsyncIterator

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql

from deploy.local import provision
from deploy.local.postgres import PostgresServer
from tests.support.postgres import PASSWORDS, make_operator, own_server

RIGHTS = ("rolsuper", "rolcreatedb", "rolcreaterole", "rolreplication", "rolbypassrls", "rolinherit")


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[PostgresServer]:
    """A fresh server for each test, because nobody else may have made its roles."""
    async with own_server() as made:
        yield made


async def rights(url: str, role: str) -> tuple[bool, ...]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        query = sql.SQL("SELECT {} FROM pg_roles WHERE rolname = %s").format(
            sql.SQL(", ").join(map(sql.Identifier, RIGHTS))
        )
        row = await (await connection.execute(query, (role,))).fetchone()
    assert row is not None
    return row


def verified(url: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "windlass.cli", "admin", "verify", "--database-url", url]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


async def prepare(url: str, database: str = provision.DATABASE) -> None:
    await provision.provision(url, PASSWORDS, database)
    await provision.migrate(
        {owner: provision.service_url(url, owner, PASSWORDS[owner], database) for owner in provision.OWNERS}
    )


async def test_operator_without_superuser_prepares_a_server_and_again(server: PostgresServer) -> None:
    operator = await make_operator(server.url())
    for database in (provision.DATABASE, provision.DATABASE, "second", "second"):
        await prepare(operator, database)
    for owner in provision.OWNERS:
        role = provision.role_of(owner)
        assert not any(await rights(server.url(), role)), role
        async with await psycopg.AsyncConnection.connect(
            provision.service_url(operator, owner, PASSWORDS[owner])
        ) as connection:
            await connection.execute(f"SELECT FROM {owner}.schema_version")


async def test_operator_verifies_what_it_has_prepared(server: PostgresServer) -> None:
    operator = await make_operator(server.url())
    await provision.provision(operator, PASSWORDS)
    said = verified(operator)
    assert said.returncode == 1
    assert said.stderr.endswith("windlass migrate makes what is missing\n")
    assert len(said.stderr.splitlines()) == 1
    await prepare(operator)
    said = verified(operator)
    assert (said.returncode, said.stderr) == (0, "")


async def test_superuser_goes_on_where_an_operator_began(server: PostgresServer) -> None:
    operator = await make_operator(server.url())
    await prepare(operator)
    await prepare(server.url())
    await prepare(operator)


async def test_role_with_too_many_rights_is_brought_into_order_by_a_superuser(server: PostgresServer) -> None:
    await prepare(server.url())
    role = provision.role_of("dispatcher")
    async with await psycopg.AsyncConnection.connect(server.url()) as connection:
        await connection.execute(f"ALTER ROLE {role} SUPERUSER CREATEDB CREATEROLE REPLICATION BYPASSRLS INHERIT")
    assert all(await rights(server.url(), role))
    await prepare(server.url())
    assert not any(await rights(server.url(), role))


async def test_operator_does_not_pass_over_a_role_that_it_cannot_bring_into_order(server: PostgresServer) -> None:
    operator = await make_operator(server.url())
    await prepare(operator)
    async with await psycopg.AsyncConnection.connect(server.url()) as connection:
        await connection.execute(f"ALTER ROLE {provision.role_of('api')} SUPERUSER")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await prepare(operator)
