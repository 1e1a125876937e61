"""The table of docs/commands.md: what each command of a person does in each state of an execution."""

from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).resolve().parents[2] / "docs/commands.md"
QUEUED: Final = "PENDING"


def table() -> dict[str, dict[str, str]]:
    """The first table of the page: the cells of each command, by state. Both in their order."""
    (first,) = [part for part in PAGE.read_text().split("\n\n") if part.startswith("| command |")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in first.splitlines()]
    head, _, *body = rows
    cells = {row[0].strip("`"): dict(zip(head[1:], row[1:], strict=True)) for row in body}
    assert len(cells) == len(body), "a command has two rows"
    return cells
