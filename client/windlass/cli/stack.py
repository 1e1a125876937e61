"""Commands that run Windlass: the local stack, single processes, schemas and first keys.

They need the extra `windlass[local]`, or that of the one service, and say so when it is missing.
"""

import os
import runpy
import sys
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal

import typer

from windlass.cli.forms import FormOption, JsonOption, chosen
from windlass.cli.invocation import DEFAULT_HOME
from windlass.cli.output import say


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
        raise typer.BadParameter("this is not like postgresql://USER:PASSWORD@HOST:PORT/postgres") from None
    return given


def _as_networks(given: list[str] | None) -> list[str]:
    for network in given or ():
        try:
            ip_network(network)
        except ValueError as fault:
            raise typer.BadParameter(f"{fault}; a network is like 10.1.0.0/16") from None
    return given or []


StackHomeOption = Annotated[
    Path, typer.Option("--home", help="The folder of the stack's state.", show_default=True, envvar="WINDLASS_HOME")
]
OperatorOption = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        help="Any PostgreSQL from 15 instead of the embedded one, as a user with CREATEROLE and CREATEDB.",
        envvar="WINDLASS_DATABASE_URL",
        callback=_as_url,
    ),
]

AllowNetOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CIDR",
        help="A network that modules may call although it is not public; repeat it for more.",
        callback=_as_networks,
    ),
]

# The gRPC port of a 21st replica would be the metrics port of the first.
REPLICAS_MAX = 20
_say = partial(say, err=True)

admin = typer.Typer(help="Create the first keys, and verify a database.", no_args_is_help=True, rich_markup_mode=None)


ServiceName = Literal["api", "dispatcher", "coordinator", "runner"]


def register(app: typer.Typer) -> None:
    for command in (up, down, status, serve, migrate, demo):
        app.command()(command)
    admin.command()(bootstrap)
    admin.command()(verify)


def up(
    home: StackHomeOption = DEFAULT_HOME,
    port_offset: Annotated[int, typer.Option(help="A number that is added to every port.", min=0, max=55000)] = 0,
    apis: Annotated[int, typer.Option(help="The number of api processes.", min=1, max=REPLICAS_MAX)] = 1,
    dispatchers: Annotated[int, typer.Option(help="The number of dispatcher processes.", min=1, max=REPLICAS_MAX)] = 1,
    coordinators: Annotated[
        int, typer.Option(help="The number of coordinator processes.", min=1, max=REPLICAS_MAX)
    ] = 1,
    runners: Annotated[int, typer.Option(help="The number of runner processes.", min=0, max=REPLICAS_MAX)] = 1,
    modules: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Python with modules of your own for the runners; repeat it for more.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    lease_scale: Annotated[
        float, typer.Option(help="All times of leases are multiplied by this.", min=0.01, max=100)
    ] = 1.0,
    database_url: OperatorOption = None,
    otlp_endpoint: Annotated[
        str | None, typer.Option(help="The OTLP/gRPC collector for traces. Without it there are none.")
    ] = None,
    allow_net: AllowNetOption = None,
    no_restart: Annotated[
        bool, typer.Option("--no-restart", help="Do not start a process again that has died.")
    ] = False,
    env: Annotated[list[str] | None, typer.Option(hidden=True, help="SERVICE[-REPLICA]:KEY=VALUE")] = None,
) -> None:
    """Run the whole stack until Ctrl-C.

    \b
    Examples:
      windlass up
      windlass up --modules billing.py --allow-net 127.0.0.1 --runners 2
      windlass up --home /var/tmp/second --port-offset 300
    """
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
        allow_net=allow_net or (),
        restart=not no_restart,
        extra_env=env or (),
    )
    raise typer.Exit(local_stack.up(options))


def down(home: StackHomeOption = DEFAULT_HOME) -> None:
    """Stop the stack that `up` runs in another terminal."""
    from windlass.cli import local_stack

    raise typer.Exit(local_stack.down(home))


def status(home: StackHomeOption = DEFAULT_HOME, form: FormOption = None, as_json: JsonOption = False) -> None:
    """Show what runs, where and since when. Exit code 1 unless the stack is up."""
    from windlass.cli import local_stack

    raise typer.Exit(local_stack.status(home, chosen(form, as_json=as_json)))


def serve(
    service: Annotated[ServiceName, typer.Argument(metavar="SERVICE", help="The service to run.")],
    grpc_address: Annotated[str | None, typer.Option(help="Sets WINDLASS_GRPC_ADDRESS.")] = None,
    public_grpc_address: Annotated[str | None, typer.Option(help="Sets WINDLASS_PUBLIC_GRPC_ADDRESS.")] = None,
    metrics_address: Annotated[str | None, typer.Option(help="Sets WINDLASS_METRICS_ADDRESS.")] = None,
    replica: Annotated[str | None, typer.Option(help="Sets WINDLASS_REPLICA.")] = None,
    lease_scale: Annotated[float | None, typer.Option(help="Sets WINDLASS_LEASE_SCALE.")] = None,
    allow_net: AllowNetOption = None,
) -> None:
    """Run one service in the foreground, as production does. Its settings are WINDLASS_… in the environment and these
    options.

    \b
    Examples:
      windlass serve coordinator --replica coordinator-1
    """
    given = {
        "GRPC_ADDRESS": grpc_address,
        "PUBLIC_GRPC_ADDRESS": public_grpc_address,
        "METRICS_ADDRESS": metrics_address,
        "REPLICA": replica,
        "LEASE_SCALE": lease_scale,
        "RUNNER_ALLOW_NET": ",".join(allow_net) if allow_net else None,
    }
    os.environ.update({f"WINDLASS_{name}": str(value) for name, value in given.items() if value is not None})
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    sys.argv = [f"windlass-{service}"]
    runpy.run_module(f"services.{service}", run_name="__main__", alter_sys=True)


def migrate(home: StackHomeOption = DEFAULT_HOME, database_url: OperatorOption = None) -> None:
    """Create or upgrade the database, its roles and schemas. The passwords of the roles are kept in the home."""
    from deploy.local.installation import migrate as run

    raise typer.Exit(run(home, _needed(database_url), _say))


def bootstrap(home: StackHomeOption = DEFAULT_HOME, database_url: OperatorOption = None) -> None:
    """Create the first workspace and keys. The workspace is `default`; the keys are kept in the home (mode 0600)."""
    from deploy.local.installation import bootstrap as run

    raise typer.Exit(run(home, _needed(database_url), _say))


def verify(context: typer.Context, home: StackHomeOption = DEFAULT_HOME, database_url: OperatorOption = None) -> None:
    """Check what is stored against the guarantees. Every journal is folded again. Exit code 1 if one is broken.

    It reads the database of the stack that runs in the home, or the database that is given.
    """
    from windlass.cli.verify import verify as run

    # A home that was typed is stronger than a database URL from the environment.
    is_home_meant = _is_typed(context, "home") and not _is_typed(context, "database_url")
    raise typer.Exit(run(home, None if is_home_meant else database_url))


def demo() -> None:
    """Run an example on a stack of its own, which is removed."""
    from windlass.cli.demo import demo as run

    raise typer.Exit(run())


def _needed(database_url: str | None) -> str:
    if not database_url:
        raise typer.BadParameter("give --database-url or WINDLASS_DATABASE_URL", param_hint="--database-url")
    return database_url


def _is_typed(context: typer.Context, parameter: str) -> bool:
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"
