"""How `windlass` is called in this shell, so that a command that we print works when it is pasted."""

import os
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
    """`command` as it works from here, with the home unless it is the default one."""
    words = command.replace("windlass", program(), 1)
    return words if home.absolute() == DEFAULT_HOME.absolute() else f"{words} --home {os.path.relpath(home)}"
