"""Every command in an error, on a page or in the demo exists, with its options."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from windlass.cli.app import app

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("services", "deploy", "client/windlass/cli")
PAGES = ("README.md", "docs")
# `windlass` and what follows on the line, up to the quote, brace, parenthesis or `&&` that ends it.
NAMED = re.compile(r"""(?:["'`]|with: |see: |\bBIN\)/|^ *|\(`?)windlass((?: [^\s"'`{}()|&\\;,.]+)+)""", re.MULTILINE)


def named_commands() -> Iterator[tuple[str, list[str]]]:
    paths = [path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))]
    paths += [path for name in PAGES for path in (ROOT / name, *sorted((ROOT / name).rglob("*.md"))) if path.is_file()]
    for path in paths:
        for match in NAMED.finditer(path.read_text()):
            yield f"{path.relative_to(ROOT)}: windlass{match[1]}", match[1].split()


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    found: Any = typer.main.get_command(app)
    while hasattr(found, "commands") and words and not words[0].startswith(("-", "…")):
        name, *words = words
        assert name in found.commands, f"no command {name!r}"
        found = found.commands[name]
    return found, words


@pytest.mark.parametrize(("where", "words"), [pytest.param(*each, id=each[0]) for each in named_commands()])
def test_named_command_exists(where: str, words: list[str]) -> None:
    command, rest = command_of(words)
    options = {name for parameter in command.params for name in parameter.opts} | {"-h", "--help"}
    unknown = [word for word in rest if word.startswith("-") and word not in options]
    assert not unknown, f"{where}: {unknown}"


def test_commands_are_found_at_all() -> None:
    places = {where.partition(":")[0] for where, _ in named_commands()}
    assert "services/api/app/refusals.py" in places
