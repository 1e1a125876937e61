"""The words to type for `windlass` in this shell, so that the commands that we print work when they are copied."""

import os
import shlex
import shutil
import sys
from pathlib import Path

DEFAULT_HOME = Path(".windlass")


def program() -> str:
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{os.path.relpath(sys.executable)} -m windlass.cli"
    return "windlass" if shutil.which("windlass") else os.path.relpath(called)


def as_typed(command: str, home: Path) -> str:
    """`command` as it works here: with the right program, and with the home if it is not the default."""
    if not command.startswith("windlass "):
        return command
    words = command.replace("windlass", program(), 1)
    is_default = home.absolute() == DEFAULT_HOME.absolute()
    return words if is_default else f"{words} --home {shlex.quote(os.path.relpath(home))}"
