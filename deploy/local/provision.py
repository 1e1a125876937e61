"""The database, its roles and their schemas: one role and one schema per service that owns tables.

Each role owns its own schema and may not even look into another's; `public` is closed to all of them. Works
on any PostgreSQL from 15 with the address of a superuser, or of an operator with CREATEROLE and CREATEDB (managed
servers give no more), and may be repeated at every start.

Hazards: roles belong to the whole server, not to one database, so a second database on the same server shares
them and their passwords. From 16 on, an operator who is no superuser rules only roles that it made: all runs on
one server are the same operator's, or a superuser's. Passwords travel as scram verifiers, never in clear, so that
no server log can hold one.
"""

from collections.abc import Mapping
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

DATABASE = "windlass"
OWNERS = ("api", "dispatcher", "coordinator")
POSTGRES_PORT_USUAL = 5432
POSTGRES_VERSION_MIN = 150000
# From here on a membership says by itself whether it lets one become the role, and have its rights unasked.
POSTGRES_VERSION_OPTIONS = 160000
# What a service's role must not have (as pg_roles names it), and how it is denied.
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
    """Host and port to show to a person; of several, the hosts and the first port. No secret is in them."""
    given = conninfo_to_dict(url)
    host = given.get("host") or given.get("hostaddr") or "localhost"
    return str(host), int(str(given.get("port") or POSTGRES_PORT_USUAL).split(",")[0])


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
    found = await connection.execute(
        sql.SQL("SELECT {} FROM pg_roles WHERE rolname = %s").format(
            sql.SQL(", ").join(map(sql.Identifier, EXCESSIVE))
        ),
        (role,),
    )
    rights = await found.fetchone()
    verb = sql.SQL("CREATE ROLE" if rights is None else "ALTER ROLE")
    # A new role has none of them, and whoever names one must have it, though only to deny it.
    denied = [no for no, has in zip(EXCESSIVE.values(), rights or (), strict=False) if has]
    await connection.execute(
        sql.SQL("{} {} LOGIN NOINHERIT {} PASSWORD {}").format(
            verb, sql.Identifier(role), sql.SQL(" ").join(map(sql.SQL, denied)), sql.Literal(verifier)
        )
    )


async def _become_member(connection: psycopg.AsyncConnection, role: str) -> None:
    """Nobody hands a schema to a role that it could not become; a superuser is a member of all.

    An operator stays a member: `windlass admin verify` reads what the roles own. From 16 on, who makes a role may
    give itself that, but does not have it.
    """
    grants_say = connection.info.server_version >= POSTGRES_VERSION_OPTIONS
    found = await connection.execute(
        "SELECT bool_and(pg_has_role(%s, each)) FROM unnest(%s::text[]) each",
        (role, ["SET", "USAGE"] if grants_say else ["MEMBER"]),
    )
    if (await found.fetchone()) == (True,):
        return
    options = sql.SQL("WITH SET TRUE, INHERIT TRUE" if grants_say else "")
    await connection.execute(sql.SQL("GRANT {} TO CURRENT_USER {}").format(sql.Identifier(role), options))


async def _schemas(connection: psycopg.AsyncConnection, database: str) -> None:
    name = sql.Identifier(database)
    await connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(name))
    await connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    for service in OWNERS:
        role, schema = sql.Identifier(role_of(service)), sql.Identifier(service)
        await connection.execute(sql.SQL("GRANT CONNECT, TEMPORARY ON DATABASE {} TO {}").format(name, role))
        found = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (service,))
        if await found.fetchone() is None:
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        await _become_member(connection, role_of(service))
        await connection.execute(sql.SQL("ALTER SCHEMA {} OWNER TO {}").format(schema, role))
        await connection.execute(
            sql.SQL("ALTER ROLE {} IN DATABASE {} SET search_path = {}").format(role, name, schema)
        )
