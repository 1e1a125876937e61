"""Arguments that many commands have, and how their values are read."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from windlass.definition.durations import parse_duration

IdArgument = Annotated[str, typer.Argument(metavar="EXECUTION_ID")]
RunIdArgument = Annotated[
    str, typer.Argument(metavar="RUN_ID", help="Execution id, dot and number: `windlass runs ID -o name` prints it.")
]
LimitOption = Annotated[int, typer.Option(help="The most to list.", min=1, max=1000)]
PageOption = Annotated[
    str, typer.Option("--page-token", help="Go on where a list has ended; the list before it says this token.")
]


def text_of(given: str, option: str) -> str:
    """What the value of an option stands for: itself, the content of a file (`@FILE`), or standard input (`@-`)."""
    if not given.startswith("@"):
        return given
    try:
        return sys.stdin.read() if given == "@-" else Path(given[1:]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise typer.BadParameter(f"cannot read {given[1:]}: {why}", param_hint=option) from None


def json_object(given: str, option: str) -> Any:
    """The value of an option as a Struct."""
    from google.protobuf.json_format import ParseDict, ParseError
    from google.protobuf.struct_pb2 import Struct

    text = text_of(given, option)
    if not text.strip():
        raise typer.BadParameter("this is empty, and not a JSON object", param_hint=option)
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise TypeError('an object has braces, like {"id": 7}')
        return ParseDict(value, Struct())
    except (ValueError, TypeError, AttributeError, ParseError) as error:
        raise typer.BadParameter(f"this is not a JSON object: {error}", param_hint=option) from None


def micros_of(given: str, option: str) -> int:
    """The value of an option as a duration that is longer than 0."""
    try:
        if micros := parse_duration(given):
            return micros
        raise ValueError("a duration is longer than 0 here")
    except ValueError as fault:
        raise typer.BadParameter(str(fault), param_hint=option) from None


def labels_of(entries: Any) -> dict[str, str]:
    """The values of --label, as NAME=VALUE."""
    found = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals:
            raise typer.BadParameter(f"{entry!r} is not NAME=VALUE", param_hint="--label")
        found[name] = value
    return found
