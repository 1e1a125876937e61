"""Every command that README.md, docs and examples print exists, with the options that they give it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from windlass.cli.app import app

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("examples/**/*.md"))]
# The words of a command, and the rest of its line or of its piece of code.
_COMMAND = re.compile(r"(?:^ *|`)windlass ((?:[a-z][a-z-]+ ?)+)([^`\n]*)", re.MULTILINE)
# Values in quotes are no options, and neither is what follows another command or a comment.
_NO_OPTIONS = re.compile(r"'[^']*'|\"[^\"]*\"|[#|&;].*")


def commands_in(text: str) -> Iterator[tuple[Any, str, list[str]]]:
    """What each printed command names: the command, or the group that has no such command; the line; its options."""
    for found in _COMMAND.finditer(text):
        command: Any = typer.main.get_command(app)
        for word in found[1].split():
            if not hasattr(command, "commands") or command is None:
                break
            command = command.commands.get(word)
        yield command, found[0].strip(), re.findall(r"(?<!\S)--[a-z][a-z-]*", _NO_OPTIONS.sub("", found[2]))


def test_some_commands_are_found() -> None:
    assert sum(len(list(commands_in(page.read_text()))) for page in PAGES) > 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_printed_commands_exist(page: Path) -> None:
    for command, line, options in commands_in(page.read_text()):
        assert command is not None, line
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        assert set(options) <= known, line


def test_the_home_of_the_environment_is_that_of_every_command(tmp_path: Path) -> None:
    for words in (["status"], ["list"]):
        answer = CliRunner().invoke(app, words, env={"WINDLASS_HOME": str(tmp_path / "elsewhere")})
        assert answer.exit_code != 0
        assert "elsewhere" in answer.output
