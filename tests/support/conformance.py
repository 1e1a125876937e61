"""Runs `windlass conformance` and reads its account."""

import re
import subprocess
import sys

EXAMINED_SECONDS = 500
LINE = re.compile(r"^(kept|BROKEN|NOT SEEN) +([A-Z_]+) ", re.MULTILINE)


def examined(runner: str, *options: str) -> subprocess.CompletedProcess[str]:
    """The kit's run with this command of a runner."""
    command = [sys.executable, "-m", "windlass.cli", "conformance", "--runner", runner, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=EXAMINED_SECONDS, check=False)


def account(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The verdict of each rule, by its name."""
    return {name: verdict for verdict, name in LINE.findall(done.stdout)}
