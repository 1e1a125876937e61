"""Runs the command line as a person does, without the settings of the person who runs the tests."""

import os
import subprocess
import sys
from pathlib import Path

from deploy.local.home import RUNNING, Home

SECONDS = 60


def windlass(*arguments: object, given: str | None = None, **environment: object) -> subprocess.CompletedProcess[str]:
    """Run `windlass` with these arguments and this standard input."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
    return subprocess.run(
        [sys.executable, "-m", "windlass.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=SECONDS,
        check=False,
        input=given,
        env=clean | {name: str(value) for name, value in environment.items()},
    )


def running_home(folder: Path, *apis: str) -> Path:
    """Make the folder the home of a stack with these apis, which runs as long as this process."""
    home = Home(folder)
    home.take(RUNNING)
    home.write_up({"pid": os.getpid(), "processes": [{"service": "api", "grpc": api} for api in apis]})
    return folder
