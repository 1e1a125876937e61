"""The database, its roles and their schemas: one role and one schema per service that owns tables.

Each role owns its own schema and may not even look into another's; `public` is closed to all of them. Works
on any PostgreSQL from 15 with a superuser's (or CREATEROLE + CREATEDB) address, and may be repeated at every
start.

Hazards: roles belong to the whole server, not to one database, so a second database on the same server shares
them and their passwords. Passwords travel as scram verifiers, never in clear, so that no server log can hold
one.
"""

from collections.abc import Mapping
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql

DATABASE = "windlass"
OWNERS = ("api", "dispatcher", "coordinator")
POSTGRES_VERSION_MIN = 150000


class TooOld(Exception):
    """The server is older than PostgreSQL 15."""


def role_of(service: str) -> str:
    return f"windlass_{service}"


def service_url(superuser_url: str, service: str, password: str, database: str = DATABASE) -> str:
    parts = urlsplit(superuser_url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(
        parts._replace(netloc=f"{role_of(service)}:{quote(password, safe='')}@{host}", path=f"/{database}")
    )


def with_database(url: str, database: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


async def provision(superuser_url: str, passwords: Mapping[str, str], database: str = DATABASE) -> None:
    """Make, or bring into order, the roles, the database and the schemas. `passwords` is by service."""
    async with await psycopg.AsyncConnection.connect(superuser_url, autocommit=True) as connection:
        if connection.info.server_version < POSTGRES_VERSION_MIN:
            raise TooOld(
                f"PostgreSQL {connection.info.server_version // 10000} is too old; Windlass needs 15 or newer"
            )
        for service in OWNERS:
            await _role(connection, role_of(service), passwords[service])
        found = await connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,))
        if await found.fetchone() is None:
            await connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
    async with await psycopg.AsyncConnection.connect(with_database(superuser_url, database)) as connection:
        await _schemas(connection, database)


async def _role(connection: psycopg.AsyncConnection, role: str, password: str) -> None:
    verifier = connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    found = await connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,))
    verb = sql.SQL("ALTER ROLE" if await found.fetchone() else "CREATE ROLE")
    rights = sql.SQL("LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT NOREPLICATION NOBYPASSRLS PASSWORD")
    await connection.execute(
        sql.SQL("{} {} {} {}").format(verb, sql.Identifier(role), rights, sql.Literal(verifier))
    )


async def _schemas(connection: psycopg.AsyncConnection, database: str) -> None:
    name = sql.Identifier(database)
    await connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(name))
    await connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    for service in OWNERS:
        role, schema = sql.Identifier(role_of(service)), sql.Identifier(service)
        await connection.execute(sql.SQL("GRANT CONNECT, TEMPORARY ON DATABASE {} TO {}").format(name, role))
        found = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (service,))
        if await found.fetchone() is None:
            # A CREATEROLE user of PostgreSQL 16+ must be able to become the role to hand the schema over.
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        await connection.execute(sql.SQL("ALTER SCHEMA {} OWNER TO {}").format(schema, role))
        await connection.execute(
            sql.SQL("ALTER ROLE {} IN DATABASE {} SET search_path = {}").format(role, name, schema)
        )
