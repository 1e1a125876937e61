"""Tables, states and timelines for people; JSON for programs. rich is imported when something is shown."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from windlass.cli.output import say, visible, visible_json

STATE_COLOURS = {
    "SUCCESS": "green",
    "FAILED": "red",
    "TIMEOUT": "red",
    "DLQ": "red",
    "CANCELLED": "yellow",
    "PAUSED": "yellow",
    "RUNNING": "cyan",
    "LEASED": "cyan",
    "OPEN": "red",
    "HALF_OPEN": "yellow",
}
BAR_WIDTH = 40
COLUMN_GAP = "  "
# A double holds every whole number up to this one. The digits of larger ones would be wrong.
WHOLE_MAX = 2**53
_JSON_MESSAGES = ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue")
# The run that renders the workflow's output has this in place of a node's id.
OUTPUT_NODE, OUTPUT_SHOWN = "$output", "(output)"
# The compensation of a node has its name and this.
UNDO_SUFFIX = "$undo"


# Says what is in the cells of each column, by its title.
Columns = Mapping[str, "str | Callable[[Any], str]"]


def listing(name: str, columns: Columns) -> Callable[[Any], None]:
    """Shows the items that an answer has in the field of this name."""

    def shown(answer: Any) -> None:
        table(getattr(answer, name), columns)
        tell_of_more(answer)

    return shown


def tell_of_more(answer: Any) -> None:
    """Say how a list goes on. This is no part of it."""
    if getattr(answer, "next_page_token", ""):
        say(f"there are more: --page-token {answer.next_page_token}", err=True)


def table(items: Iterable[Any], columns: Columns) -> None:
    """A row for each item. A column has a field of the item, or what a function makes of the item."""
    grid(columns, ([cell(item, of) if isinstance(of, str) else of(item) for of in columns.values()] for item in items))


def cell(item: Any, path: str) -> str:
    """A field of a message, like `metrics.duration`, as people read it."""
    *holders, name = path.split(".")
    for holder in holders:
        item = getattr(item, holder)
    field, value = item.DESCRIPTOR.fields_by_name[name], getattr(item, name)
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    if field.message_type is None:
        return str(value)
    return duration(value) if field.message_type.name == "Duration" else date(value)


def grid(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> None:
    """One line for each row, with whole cells, so that an id can be copied. A terminal goes on with a line that is too
    long for it in the next line."""
    from rich.cells import cell_len

    lines = [list(columns), *([visible(" ".join(cell.split())) for cell in row] for row in rows)]
    widths = [max(cell_len(cell) for cell in column) for column in zip(*lines, strict=True)]
    out = console()
    for line in lines:
        padded = (coloured(cell) + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True))
        out.print(COLUMN_GAP.join(padded).rstrip(), soft_wrap=True)
        if line is lines[0]:
            out.print("─" * min(sum(widths) + len(COLUMN_GAP) * (len(widths) - 1), out.width))


def facts(told: Mapping[str, str], *, width: int) -> None:
    """A line for each fact that is known. Names are as wide as the longest usual one."""
    for name, value in told.items():
        if value:
            console().print(f"{name:<{width}} {coloured(value)}", soft_wrap=True)


def console() -> Any:
    from rich.console import Console

    return Console(highlight=False)


def coloured(cell: str) -> str:
    """A text, of somebody else perhaps, as rich shows it."""
    from rich.markup import escape

    colour = STATE_COLOURS.get(cell)
    return f"[{colour}]{cell}[/{colour}]" if colour else escape(visible(cell))


def print_json(message: Any) -> None:
    """A message in protobuf's JSON form."""
    say(visible_json(json.dumps(plain(message), indent=1, ensure_ascii=False)))


def compact(message: Any) -> str:
    """A message, Struct or Value on one line. The keys are sorted, because a Struct has them in no order."""
    return visible_json(json.dumps(plain(message), ensure_ascii=False, sort_keys=True))


def plain(message: Any) -> Any:
    """Protobuf's JSON form. A Struct has its keys in no order, and only floats: here the keys are sorted, and whole
    numbers are shown as 2 and not as 2.0."""
    from google.protobuf.json_format import MessageToDict

    return _tidy(MessageToDict(message), message.DESCRIPTOR)


def _tidy(value: Any, kind: Any = None) -> Any:
    """`kind` describes the message that was made a dictionary. None: it is JSON of somebody else, or a map."""
    if isinstance(value, list):
        return [_tidy(each, kind) for each in value]
    if isinstance(value, dict):
        if kind is None or kind.full_name in _JSON_MESSAGES:
            return {key: _tidy(value[key]) for key in sorted(value)}
        kinds = {field.json_name: field.message_type for field in kind.fields}
        return {name: _tidy(each, _message_kind(kinds.get(name))) for name, each in value.items()}
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= WHOLE_MAX
    return int(value) if is_whole else value


def _message_kind(kind: Any) -> Any:
    """None for a map, whose entries are a message to protobuf."""
    return None if kind is None or kind.GetOptions().map_entry else kind


def node_name(node: str) -> str:
    if node == OUTPUT_NODE:
        return OUTPUT_SHOWN
    undone = node.removesuffix(UNDO_SUFFIX)
    return node if undone == node else f"{undone} (undo)"


def error(found: Any) -> str:
    """Its type and its message, of which there may be none."""
    return ": ".join(filter(None, (found.type, found.message)))


def work_name(run: Any) -> str:
    """The node, with the iteration of an item or a turn of a loop."""
    name = node_name(run.node)
    return f"{name}[{run.iteration}]" if run.iteration else name


def clock(timestamp: Any) -> str:
    """Local time of day, to the millisecond; empty when unset."""
    return _here(timestamp).strftime("%H:%M:%S.%f")[:-3] if timestamp.ByteSize() else ""


def date(timestamp: Any) -> str:
    return _here(timestamp).strftime("%Y-%m-%d %H:%M:%S") if timestamp.ByteSize() else ""


def duration(message: Any) -> str:
    return span(message.seconds + message.nanos / 1e9) if message.ByteSize() else ""


def span(seconds: float) -> str:
    """A time in the two units that say most about it."""
    if seconds < 120:
        return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def run_count(runs: int, retries: int) -> str:
    return f"{runs}, of which {retries} {'is a retry' if retries == 1 else 'are retries'}" if retries else str(runs)


def timeline(runs: Sequence[Any]) -> None:
    """Each run as a bar from its start to its end, on one common scale."""
    started = [run for run in runs if run.start_time.ByteSize() and run.end_time.ByteSize()]
    if not started:
        return
    first = min(_when(run.start_time) for run in started)
    whole = max((max(_when(run.end_time) for run in started) - first).total_seconds(), 1e-6)
    width = max(len(work_name(run)) for run in started)
    for run in started:
        begin = (_when(run.start_time) - first).total_seconds()
        length = (_when(run.end_time) - _when(run.start_time)).total_seconds()
        left = min(int(begin / whole * BAR_WIDTH), BAR_WIDTH - 1)
        bar = " " * left + "━" * max(1, min(round(length / whole * BAR_WIDTH), BAR_WIDTH - left))
        state = cell(run, "state")
        colour = STATE_COLOURS.get(state, "white")
        attempt = f" attempt {run.attempt}" if run.attempt > 1 or state == "FAILED" else ""
        name = work_name(run)
        line = f"  {name:<{width}} [{colour}]{bar:<{BAR_WIDTH}}[/{colour}] {span(length)} {state}{attempt}"
        console().print(line, soft_wrap=True)


def _here(timestamp: Any) -> datetime:
    found = _when(timestamp)
    try:
        return found.astimezone()
    except OverflowError:
        # East of Greenwich the last hours of 9999 would be in the year 10000, so they are shown in UTC.
        return found


def _when(timestamp: Any) -> datetime:
    from datetime import UTC

    found: datetime = timestamp.ToDatetime(tzinfo=UTC)
    return found
