"""Tables, states and timelines for people; JSON for programs. rich is imported when something is shown."""

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import typer

STATE_COLOURS = {
    "SUCCESS": "green",
    "FAILED": "red",
    "TIMEOUT": "red",
    "DLQ": "red",
    "CANCELLED": "yellow",
    "RUNNING": "cyan",
    "LEASED": "cyan",
}
BAR_WIDTH = 40
# Above it a double does not hold every whole number.
WHOLE_MAX = 2**53
# The run that renders the workflow's own output belongs to no node of the graph.
OUTPUT_NODE, OUTPUT_SHOWN = "$output", "(output)"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich import box
    from rich.table import Table

    made = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        made.add_row(*(coloured(cell) for cell in row))
    console().print(made)


def console() -> Any:
    """A file or a pipe gets lines wide enough for whole ids."""
    from rich.console import Console

    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=200)


def coloured(cell: str) -> str:
    from rich.markup import escape

    colour = STATE_COLOURS.get(cell)
    return f"[{colour}]{cell}[/{colour}]" if colour else escape(cell)


def as_json(message: Any) -> None:
    """A message in protobuf's JSON form."""
    typer.echo(json.dumps(plain(message), indent=1, ensure_ascii=False))


def compact(message: Any) -> str:
    """A message, Struct or Value on one line."""
    return json.dumps(plain(message), ensure_ascii=False)


def plain(message: Any) -> Any:
    """Protobuf's JSON form. A Struct has only floats; whole ones are written as 2, not 2.0."""
    from google.protobuf.json_format import MessageToDict

    return _whole(MessageToDict(message))


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= WHOLE_MAX
    return int(value) if is_whole else value


def node_name(node: str) -> str:
    return OUTPUT_SHOWN if node == OUTPUT_NODE else node


def clock(timestamp: Any) -> str:
    """Local time of day, to the millisecond; empty when unset."""
    return _here(timestamp).strftime("%H:%M:%S.%f")[:-3] if timestamp.ByteSize() else ""


def date(timestamp: Any) -> str:
    return _here(timestamp).strftime("%Y-%m-%d %H:%M:%S") if timestamp.ByteSize() else ""


def duration(message: Any) -> str:
    return span(message.seconds + message.nanos / 1e9) if message.ByteSize() else ""


def span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def timeline(runs: Sequence[Any], state_of: Callable[[Any], str]) -> None:
    """Each run as a bar from its start to its end, on one common scale."""
    started = [run for run in runs if run.start_time.ByteSize() and run.end_time.ByteSize()]
    if not started:
        return
    first = min(_when(run.start_time) for run in started)
    whole = max((max(_when(run.end_time) for run in started) - first).total_seconds(), 1e-6)
    width = max(len(node_name(run.node)) for run in started)
    for run in started:
        begin = (_when(run.start_time) - first).total_seconds()
        length = (_when(run.end_time) - _when(run.start_time)).total_seconds()
        left = min(int(begin / whole * BAR_WIDTH), BAR_WIDTH - 1)
        bar = " " * left + "━" * max(1, min(round(length / whole * BAR_WIDTH), BAR_WIDTH - left))
        colour = STATE_COLOURS.get(state_of(run), "white")
        attempt = f" attempt {run.attempt}" if run.attempt > 1 or state_of(run) == "FAILED" else ""
        name = node_name(run.node)
        console().print(
            f"  {name:<{width}} [{colour}]{bar:<{BAR_WIDTH}}[/{colour}] {span(length)} {state_of(run)}{attempt}"
        )


def _here(timestamp: Any) -> datetime:
    found = _when(timestamp)
    try:
        return found.astimezone()
    except OverflowError:
        # The last hours of the year 9999 have no local time east of Greenwich: they are shown in UTC.
        return found


def _when(timestamp: Any) -> datetime:
    found: datetime = timestamp.ToDatetime(tzinfo=UTC)
    return found
