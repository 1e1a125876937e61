"""`windlass context …`: names for stacks, so that a command need not say each time which one it speaks to.

The file with the contexts has no key, only the paths of the files that have one.
"""

import json
import os
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from windlass.cli import render
from windlass.cli.forms import FormOption, JsonOption, chosen, show_plain
from windlass.cli.output import say, visible

app = typer.Typer(help="Name stacks, and say which one commands speak to.", no_args_is_help=True, rich_markup_mode=None)
# What a context may say, as the fields of connection.Api.
_PATHS: Final = ("home", "key_file", "authority_file")
ContextArgument = Annotated[str, typer.Argument(metavar="NAME")]


def current() -> dict[str, Any]:
    """What the context in use says; {} if none is."""
    kept = _read()
    found = kept["contexts"].get(kept["current"], {})
    return {name: Path(value) if name in _PATHS else value for name, value in found.items()}


def is_address(text: str) -> bool:
    """Whether it is a host and a port. gRPC would add a port of its own."""
    host, _, port = text.rpartition(":")
    return bool(host) and not host.isspace() and port.isascii() and port.isdigit()


@app.command()
def add(
    name: ContextArgument,
    home: Annotated[Path | None, typer.Option(help="The home of a local stack.")] = None,
    address: Annotated[str | None, typer.Option(help="HOST:PORT of an api.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="A file with the key.")] = None,
    authority_file: Annotated[
        Path | None, typer.Option(help="Call --address over TLS. An authority in it must have signed its certificate.")
    ] = None,
) -> None:
    """Keep a stack under a name, and use it if it is the first.

    \b
    Examples:
      windlass context add staging --address staging.example.org:443 --key-file staging.key --authority-file ca.pem
    """
    if (home is None) == (address is None):
        raise typer.BadParameter("give --home, or --address with --key-file")
    if address is not None and key_file is None:
        raise typer.BadParameter("an --address needs a --key-file")
    if address is not None and not is_address(address):
        raise typer.BadParameter(f"{address!r} is not HOST:PORT", param_hint="--address")
    given = {"home": home, "address": address, "key_file": key_file, "authority_file": authority_file}
    kept = _read()
    kept["contexts"][name] = {
        key: str(value.absolute()) if isinstance(value, Path) else value
        for key, value in given.items()
        if value is not None
    }
    kept["current"] = kept["current"] or name
    _write(kept)
    say(visible(f"{name} is kept" + (", and in use" if kept["current"] == name else "")))


@app.command()
def use(name: Annotated[str, typer.Argument(metavar="NAME", help="Without it: use none.")] = "") -> None:
    """Say which stack the next commands speak to."""
    kept = _read()
    if name and name not in kept["contexts"]:
        raise typer.BadParameter(f"there is no context {name!r}; windlass context list has them")
    kept["current"] = name
    _write(kept)
    say(visible(f"{name} is in use" if name else "no context is in use"))


@app.command()
def remove(name: ContextArgument) -> None:
    """Forget a context. The stack is left alone."""
    kept = _read()
    if kept["contexts"].pop(name, None) is None:
        raise typer.BadParameter(f"there is no context {name!r}; windlass context list has them")
    kept["current"] = "" if kept["current"] == name else kept["current"]
    _write(kept)
    say(visible(f"{name} is forgotten"))


@app.command("list")
def list_(form: FormOption = None, as_json: JsonOption = False) -> None:
    """List the contexts; the one in use has a star."""
    kept = _read()
    match chosen(form, as_json=as_json):
        case "table":
            rows = (
                ("*" if name == kept["current"] else "", name, each.get("address") or each["home"])
                for name, each in kept["contexts"].items()
            )
            render.grid(("in use", "context", "stack"), list(rows))
        case "name":
            for name in kept["contexts"]:
                say(visible(name))
        case plain:
            show_plain(kept, plain)


def _file() -> Path:
    root = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(root) / "windlass" / "contexts.json"


def _read() -> dict[str, Any]:
    """`current` is the name of the context in use, or "". A name without a context is as none."""
    try:
        kept = json.loads(_file().read_text())
        return {"current": str(kept["current"]), "contexts": dict(kept["contexts"])}
    except FileNotFoundError:
        return {"current": "", "contexts": {}}
    except (ValueError, KeyError, TypeError) as fault:
        raise typer.BadParameter(f"{_file()} is damaged ({fault}); remove it") from None


def _write(kept: dict[str, Any]) -> None:
    """In one step, so that no command reads half of it."""
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.{os.getpid()}")
    part.write_text(json.dumps(kept, indent=1) + "\n")
    part.replace(file)
