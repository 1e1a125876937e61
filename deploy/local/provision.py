"""Makes the database, its roles and their schemas, and migrates them: one role and one schema per service with tables.

Each role owns its schema and may not even read another's; `public` is closed to all of them. This works on PostgreSQL
from 15 on, as a superuser or as an operator with CREATEROLE and CREATEDB (managed servers give no more), and may be
repeated at every start.

Hazards: roles belong to the whole server, so a second database on the same server shares them and their passwords. From
16 on, an operator who is no superuser can change only the roles that it made, so one server needs the same operator
each time, or a superuser. Passwords travel as scram verifiers, never in clear, so that no server log can hold one.
"""

from collections.abc import Mapping
from importlib.resources import as_file, files
from typing import LiteralString
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from services.chassis.postgres import migrations

DATABASE = "windlass"
OWNERS = ("api", "dispatcher", "coordinator")
POSTGRES_PORT_USUAL = 5432
POSTGRES_VERSION_MIN = 150000
# From this version on each membership says whether the member may SET the role, and whether it INHERITs its rights.
POSTGRES_VERSION_OPTIONS = 160000
# The attributes in pg_roles that a service's role must not have, and the words that take them away.
EXCESSIVE = {
    "rolsuper": "NOSUPERUSER",
    "rolcreatedb": "NOCREATEDB",
    "rolcreaterole": "NOCREATEROLE",
    "rolreplication": "NOREPLICATION",
    "rolbypassrls": "NOBYPASSRLS",
}


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


def address_of(url: str) -> tuple[str, int]:
    """Return host and port for a person, without any secret. Several servers give all hosts and the first port."""
    given = conninfo_to_dict(url)
    host = given.get("host") or given.get("hostaddr") or "localhost"
    return str(host), int(str(given.get("port") or POSTGRES_PORT_USUAL).split(",")[0])


def with_database(url: str, database: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


async def migrate(urls: Mapping[str, str]) -> list[str]:
    """Apply the migrations that are missing and return their names. `urls` holds the address of each service's role.

    The migrations of a service run as its own role, so that they can reach only what the service can."""
    applied: list[str] = []
    for service in OWNERS:
        with as_file(files(f"services.{service}") / "migrations") as directory:
            names = await migrations.apply(urls[service], service, directory)
            applied.extend(f"{service}/{name}" for name in names)
    return applied


async def provision(superuser_url: str, passwords: Mapping[str, str], database: str = DATABASE) -> None:
    """Make or correct the roles, the database and the schemas. `passwords` is by service."""
    async with await psycopg.AsyncConnection.connect(superuser_url, autocommit=True) as connection:
        if connection.info.server_version < POSTGRES_VERSION_MIN:
            raise TooOld(f"PostgreSQL {connection.info.server_version // 10000} is too old; Windlass needs 15 or newer")
        for service in OWNERS:
            await _role(connection, role_of(service), passwords[service])
        found = await connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,))
        if await found.fetchone() is None:
            await connection.execute(_named("CREATE DATABASE {}", database))
    async with await psycopg.AsyncConnection.connect(with_database(superuser_url, database)) as connection:
        await connection.execute(_named("REVOKE ALL ON DATABASE {} FROM PUBLIC", database))
        await connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        for service in OWNERS:
            await _schema(connection, database, role_of(service), service)


def _named(statement: LiteralString, *names: str) -> sql.Composed:
    return sql.SQL(statement).format(*map(sql.Identifier, names))


async def _role(connection: psycopg.AsyncConnection, role: str, password: str) -> None:
    verifier = connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    rights_of = f"SELECT {', '.join(EXCESSIVE)} FROM pg_roles WHERE rolname = %s"
    rights = await (await connection.execute(rights_of.encode(), (role,))).fetchone()
    verb = sql.SQL("CREATE ROLE" if rights is None else "ALTER ROLE")
    # A new role has none of these attributes, and an operator may only name those that it has itself.
    denied = [no for no, has in zip(EXCESSIVE.values(), rights or (), strict=False) if has]
    await connection.execute(
        sql.SQL("{} {} LOGIN NOINHERIT {} PASSWORD {}").format(
            verb, sql.Identifier(role), sql.SQL(" ").join(map(sql.SQL, denied)), sql.Literal(verifier)
        )
    )


async def _become_member(connection: psycopg.AsyncConnection, role: str) -> None:
    """Make the operator a member of the role, because only a member may give it a schema. A superuser always is one.

    The operator stays a member: `windlass admin verify` reads what the roles own. From 16 on, the maker of a role is no
    full member, but may make itself one.
    """
    grants_say = connection.info.server_version >= POSTGRES_VERSION_OPTIONS
    found = await connection.execute(
        "SELECT bool_and(pg_has_role(%s, each)) FROM unnest(%s::text[]) each",
        (role, ["SET", "USAGE"] if grants_say else ["MEMBER"]),
    )
    if (await found.fetchone()) == (True,):
        return
    options = " WITH SET TRUE, INHERIT TRUE" if grants_say else ""
    await connection.execute(_named("GRANT {} TO CURRENT_USER" + options, role))


async def _schema(connection: psycopg.AsyncConnection, database: str, role: str, schema: str) -> None:
    await connection.execute(_named("GRANT CONNECT, TEMPORARY ON DATABASE {} TO {}", database, role))
    found = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,))
    if await found.fetchone() is None:
        await connection.execute(_named("CREATE SCHEMA {}", schema))
    await _become_member(connection, role)
    await connection.execute(_named("ALTER SCHEMA {} OWNER TO {}", schema, role))
    await connection.execute(_named("ALTER ROLE {} IN DATABASE {} SET search_path = {}", role, database, schema))
