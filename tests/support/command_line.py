"""Runs the command line as a person does, without the settings of the person who runs the tests."""

import os
import subprocess
import sys

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
