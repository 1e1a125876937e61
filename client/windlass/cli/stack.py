"""Commands that run Windlass: the local stack, single processes, schemas and first keys.

They need the extra `windlass[local]`, or that of the one service, and say so when it is missing.
"""

import os
import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from windlass.cli.invocation import DEFAULT_HOME


def _as_url(given: str | None) -> str | None:
    """The URL, if it is well formed. The error does not repeat it, because it may hold a password."""
    if not given:
        return None
    import psycopg

    from deploy.local.provision import DATABASE, address_of, with_database

    try:
        if not given.startswith(("postgresql://", "postgres://")):
            raise ValueError
        address_of(with_database(given, DATABASE))
    except (ValueError, psycopg.Error):
        raise typer.BadParameter("is not like postgresql://USER:PASSWORD@HOST:PORT/postgres") from None
    return given


HomeOption = Annotated[Path, typer.Option("--home", help="The folder of the stack's state.", show_default=True)]
OperatorOption = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        help="Any PostgreSQL from 15 instead of the embedded one, as a user with CREATEROLE and CREATEDB.",
        envvar="WINDLASS_DATABASE_URL",
        callback=_as_url,
    ),
]

# The gRPC port of a 21st replica would be the metrics port of the first.
REPLICAS_MAX = 20
_say = partial(typer.echo, err=True)

admin = typer.Typer(help="First keys and commands of the operator alone.", no_args_is_help=True, rich_markup_mode=None)


Service = Literal["api", "dispatcher", "coordinator", "runner"]


def register(app: typer.Typer) -> None:
    for command in (up, down, status, serve, migrate, demo):
        app.command()(command)
    admin.command()(bootstrap)
    admin.command()(verify)


def up(
    home: HomeOption = DEFAULT_HOME,
    port_offset: Annotated[int, typer.Option(help="Added to every port.", min=0, max=55000)] = 0,
    apis: Annotated[int, typer.Option(min=1, max=REPLICAS_MAX)] = 1,
    dispatchers: Annotated[int, typer.Option(min=1, max=REPLICAS_MAX)] = 1,
    coordinators: Annotated[int, typer.Option(min=1, max=REPLICAS_MAX)] = 1,
    runners: Annotated[int, typer.Option(min=0, max=REPLICAS_MAX)] = 1,
    modules: Annotated[
        list[Path] | None,
        typer.Option(help="A file of user modules for the runners; repeatable.", exists=True, dir_okay=False),
    ] = None,
    lease_scale: Annotated[float, typer.Option(help="Factor for all lease times.", min=0.01, max=100)] = 1.0,
    database_url: OperatorOption = None,
    otlp_endpoint: Annotated[
        str | None, typer.Option(help="OTLP/gRPC collector. Without it nothing is traced.")
    ] = None,
    no_restart: Annotated[bool, typer.Option("--no-restart", help="Do not restart a process that has ended.")] = False,
    env: Annotated[list[str] | None, typer.Option(hidden=True, help="SERVICE[-REPLICA]:KEY=VALUE")] = None,
) -> None:
    """Run the whole stack until Ctrl-C."""
    from deploy.local.plan import Options, ill_formed
    from windlass.cli import local_stack

    for entry in filter(ill_formed, env or ()):
        raise typer.BadParameter(f"{entry!r} is not SERVICE:KEY=VALUE", param_hint="--env")
    options = Options(
        home=home,
        port_offset=port_offset,
        replicas={"api": apis, "dispatcher": dispatchers, "coordinator": coordinators, "runner": runners},
        modules=modules or (),
        lease_scale=lease_scale,
        database_url=database_url,
        otlp_endpoint=otlp_endpoint,
        restart=not no_restart,
        extra_env=env or (),
    )
    raise typer.Exit(local_stack.up(options))


def down(home: HomeOption = DEFAULT_HOME) -> None:
    """Stop the stack of a home, from elsewhere."""
    from windlass.cli import local_stack

    raise typer.Exit(local_stack.down(home))


def status(home: HomeOption = DEFAULT_HOME, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Show what runs, where and since when. Exit code 1 when nothing runs, or the stack is starting or stopping."""
    from windlass.cli import local_stack

    raise typer.Exit(local_stack.status(home, as_json=as_json))


def serve(
    service: Service,
    grpc_address: Annotated[str | None, typer.Option(help="WINDLASS_GRPC_ADDRESS")] = None,
    public_grpc_address: Annotated[str | None, typer.Option(help="WINDLASS_PUBLIC_GRPC_ADDRESS")] = None,
    metrics_address: Annotated[str | None, typer.Option(help="WINDLASS_METRICS_ADDRESS")] = None,
    replica: Annotated[str | None, typer.Option(help="WINDLASS_REPLICA")] = None,
    lease_scale: Annotated[float | None, typer.Option(help="WINDLASS_LEASE_SCALE")] = None,
) -> None:
    """Run one process in the foreground, as production does; set by WINDLASS_… and these options."""
    given = {
        "GRPC_ADDRESS": grpc_address,
        "PUBLIC_GRPC_ADDRESS": public_grpc_address,
        "METRICS_ADDRESS": metrics_address,
        "REPLICA": replica,
        "LEASE_SCALE": lease_scale,
    }
    os.environ.update({f"WINDLASS_{name}": str(value) for name, value in given.items() if value is not None})
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    sys.argv = [f"windlass-{service}"]
    runpy.run_module(f"services.{service}", run_name="__main__", alter_sys=True)


def migrate(home: HomeOption = DEFAULT_HOME, database_url: OperatorOption = None) -> None:
    """Create or upgrade database, roles and schemas. The passwords of the roles are kept in the home."""
    from deploy.local.installation import migrate as run

    raise typer.Exit(run(home, _needed(database_url), _say))


def bootstrap(home: HomeOption = DEFAULT_HOME, database_url: OperatorOption = None) -> None:
    """Make the workspace `default` and the first keys, kept in the home (mode 0600)."""
    from deploy.local.installation import bootstrap as run

    raise typer.Exit(run(home, _needed(database_url), _say))


def verify(context: typer.Context, home: HomeOption = DEFAULT_HOME, database_url: OperatorOption = None) -> None:
    """Fold every journal anew and check the promises that rows can show; exit code 1 for a broken one.

    It reads the database of the home's stack while that runs, or the database that is given.
    """
    from windlass.cli.verify import verify as run

    # A home that was typed is stronger than a database URL from the environment.
    is_home_meant = _is_typed(context, "home") and not _is_typed(context, "database_url")
    raise typer.Exit(run(home, None if is_home_meant else database_url))


def demo() -> None:
    """Run a worked example on a stack of its own, which is removed afterwards."""
    from windlass.cli.demo import demo as run

    raise typer.Exit(run())


def _needed(database_url: str | None) -> str:
    if not database_url:
        raise typer.BadParameter("give --database-url or WINDLASS_DATABASE_URL", param_hint="--database-url")
    return database_url


def _is_typed(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"
