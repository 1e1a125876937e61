"""Everything that the command line prints goes through here, with its control characters escaped.

Names, errors, inputs and outputs are the words of others. A terminal obeys the control characters in them: they could
overwrite lines, hide what follows, or change the order in which a line is read.
"""

import re
import sys
from collections.abc import Iterable
from typing import Final

import typer

# Controls (C0, DEL, C1), marks that change the direction of writing, separators of lines, and halves of characters.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def has_controls(text: str) -> bool:
    """Whether a text has a control character beside the ends of its lines."""
    return _CONTROL.search(text.replace("\n", "")) is not None


def visible(text: str) -> str:
    """A text of somebody else on one line."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def visible_json(text: str) -> str:
    """JSON that says the same. Whatever it has as a control character itself stands between its values."""
    return "\n".join(_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", line) for line in text.split("\n"))


def say(text: str = "", *, err: bool = False, bold: bool = False) -> None:
    """Print our own words. They may have several lines; a text of somebody else in them has to be `visible` already
    where another line would be misread."""
    shown = "\n".join(map(visible, text.split("\n")))
    typer.echo(typer.style(shown, bold=True) if bold else shown, err=err)


def say_file(text: str) -> None:
    """Print a file of somebody else: unchanged for another program, and visibly for a person."""
    if sys.stdout.isatty():
        say(text.removesuffix("\n"))
    else:
        typer.echo(text, nl=not text.endswith("\n"))


def say_pieces(pieces: Iterable[bytes]) -> None:
    """Print JSON that comes in pieces, and end the line: unchanged for another program, and visibly for a person."""
    if sys.stdout.isatty():
        say_file(visible_json(b"".join(pieces).decode()))
        return
    piece = b""
    for piece in pieces:
        sys.stdout.buffer.write(piece)
    if not piece.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")
    # Otherwise a full disk would be noticed only after the command has called itself done.
    sys.stdout.buffer.flush()
